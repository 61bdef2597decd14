/* 8051 at 11.0592 MHz: the serial port at 9,600 baud by Timer 1, Timer 0 for time. */
#include <8051.h>

#include "../examples/board.h"
#include "../mcpax.h"

void mcpax_port_init(void)
{
    TMOD = 0x21; /* Timer 1 reloads itself, Timer 0 counts 16 bits at 921.6 kHz */
    TH1 = 0xFD;
    SCON = 0x50;
    TR0 = 1;
    TR1 = 1;
    TI = 1;
}

uint8_t mcpax_port_has_byte(void)
{
    return RI;
}

uint8_t mcpax_port_get(void)
{
    RI = 0;
    return SBUF;
}

void mcpax_port_put(uint8_t byte)
{
    while (!TI) {
    }
    TI = 0;
    SBUF = byte;
}

uint16_t mcpax_port_ticks(void)
{
    return (uint16_t)TH0 << 8; /* fine enough */
}

void board_led(uint8_t is_on)
{
    P1_0 = !is_on;
}
