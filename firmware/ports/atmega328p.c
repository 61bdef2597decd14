/* ATmega328P at 16 MHz: USART0 at MCPAX_BAUD, Timer 1 for time. */
#include <avr/io.h>

#include "../examples/board.h"
#include "../mcpax.h"

#ifndef MCPAX_BAUD
#define MCPAX_BAUD 115200UL
#endif

void mcpax_port_init(void)
{
    UBRR0 = (uint16_t)((16000000UL + 4 * MCPAX_BAUD) / (8 * MCPAX_BAUD) - 1);
    UCSR0A = 1 << U2X0;
    UCSR0C = 3 << UCSZ00;
    UCSR0B = 1 << RXEN0 | 1 << TXEN0;
    TCCR1B = 5; /* clk / 1024 */
    DDRB |= 1 << PB5;
}

uint8_t mcpax_port_has_byte(void)
{
    return UCSR0A & 1 << RXC0;
}

uint8_t mcpax_port_get(void)
{
    return UDR0;
}

void mcpax_port_put(uint8_t byte)
{
    while (!(UCSR0A & 1 << UDRE0)) {
    }
    UDR0 = byte;
}

uint16_t mcpax_port_ticks(void)
{
    return TCNT1; /* 16 MHz / 1024 */
}

void board_led(uint8_t is_on)
{
    PORTB = is_on ? PORTB | 1 << PB5 : PORTB & ~(1 << PB5);
}
