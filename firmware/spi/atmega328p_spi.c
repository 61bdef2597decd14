/* ATmega328P as SPI slave, mode 0. An answer begins only while the chip is not selected, and is given up where the
 * gateway sends something else meanwhile: it asks again. */
#include <avr/io.h>

#include "../examples/board.h"
#include "../mcpax.h"

#define IS_SELECTED (!(PINB & 1 << PB2))

enum { IDLE, ANSWERING, GIVEN_UP };
static uint8_t state;

void mcpax_port_init(void)
{
    DDRB = 1 << PB4; /* MISO */
    SPCR = 1 << SPE;
    SPDR = 0;
    TCCR1B = 5; /* clk / 1024 */
}

uint8_t mcpax_port_has_byte(void)
{
    state = IDLE;
    return SPSR & 1 << SPIF;
}

uint8_t mcpax_port_get(void)
{
    uint8_t byte = SPDR;
    SPDR = 0; /* nothing to say yet */
    return byte;
}

void mcpax_port_put(uint8_t byte)
{
    if (state == GIVEN_UP) {
        return;
    }
    if (state == IDLE) {
        while (IS_SELECTED) {
        }
        state = ANSWERING;
    }
    SPDR = byte;
    while (!(SPSR & 1 << SPIF)) {
    }
    if (SPDR) { /* no poll: a request */
        state = GIVEN_UP;
        while (IS_SELECTED) {
        }
    }
    SPDR = 0;
}

uint16_t mcpax_port_ticks(void)
{
    return TCNT1;
}

void board_led(uint8_t is_on)
{
    DDRC |= 1;
    PORTC = is_on;
}
