/* micro:bit (nRF51, Cortex-M0): UART0, Timer 0 for time, and its start-up. */
#include "../examples/board.h"
#include "../mcpax.h"

#define REGISTER(address) (*(volatile uint32_t *)(address))
#define UART(offset) REGISTER(0x40002000u + (offset))
#define TIMER(offset) REGISTER(0x40008000u + (offset))
#define GPIO(offset) REGISTER(0x50000000u + (offset))
#define BAUD_115200 0x01D7E000u

extern uint32_t data_begin, data_end, data_stored, bss_begin, bss_end, stack_top;
int main(void);

static void reset(void)
{
    uint32_t *to, *from = &data_stored;
    for (to = &data_begin; to < &data_end;) {
        *to++ = *from++;
    }
    for (to = &bss_begin; to < &bss_end;) {
        *(volatile uint32_t *)to++ = 0;
    }
    main();
}

static void stop(void)
{
    for (;;) {
    }
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    &stack_top, (const void *)reset, (const void *)stop, (const void *)stop,
};

void mcpax_port_init(void)
{
    UART(0x50C) = 24; /* TXD, RXD of the micro:bit */
    UART(0x514) = 25;
    UART(0x524) = BAUD_115200;
    UART(0x500) = 4; /* enable */
    UART(0x000) = 1; /* start receiving, sending */
    UART(0x008) = 1;
    TIMER(0x508) = 0; /* 16 bits */
    TIMER(0x510) = 9; /* 16 MHz / 512 */
    TIMER(0x000) = 1;
    GPIO(0x518) = 1 << 13; /* output */
}

uint8_t mcpax_port_has_byte(void)
{
    return UART(0x108) != 0;
}

uint8_t mcpax_port_get(void)
{
    UART(0x108) = 0;
    return (uint8_t)UART(0x518);
}

void mcpax_port_put(uint8_t byte)
{
    UART(0x11C) = 0;
    UART(0x51C) = byte;
    while (!UART(0x11C)) {
    }
}

uint16_t mcpax_port_ticks(void)
{
    TIMER(0x040) = 1; /* capture */
    return (uint16_t)TIMER(0x540);
}

void board_led(uint8_t is_on)
{
    GPIO(is_on ? 0x508 : 0x50C) = 1 << 13;
}
