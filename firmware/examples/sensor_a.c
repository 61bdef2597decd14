/* A sensor and a lamp, Profile A. The first two commands are the draft's. */
#include "../mcpax.h"
#include "board.h"

#define EVENT_PRESSED 0x40

static uint8_t led;
static uint16_t presses;

static int read_sensor_handler(const uint8_t *req, uint8_t *resp)
{
    uint16_t hundredths = led ? 2200 : 2150; /* degrees; the lamp warms it */
    (void)req;
    resp[0] = (uint8_t)hundredths;
    resp[1] = (uint8_t)(hundredths >> 8);
    resp[2] = 0;
    resp[3] = 0;
    return 0;
}

static int set_led_handler(const uint8_t *req, uint8_t *resp)
{
    (void)resp;
    led = req[0];
    board_led(led);
    return 0;
}

static int read_led_handler(const uint8_t *req, uint8_t *resp)
{
    (void)req;
    resp[0] = led;
    return 0;
}

static int fail_handler(const uint8_t *req, uint8_t *resp)
{
    (void)resp;
    return req[0];
}

static int press_handler(const uint8_t *req, uint8_t *resp)
{
    uint8_t count[2];
    (void)req;
    (void)resp;
    presses++;
    count[0] = (uint8_t)presses;
    count[1] = (uint8_t)(presses >> 8);
    mcpax_a_event(EVENT_PRESSED, count, 2);
    return 0;
}

static int work_handler(const uint8_t *req, uint8_t *resp)
{
    uint16_t since = mcpax_port_ticks();
    (void)resp;
    while ((uint16_t)(mcpax_port_ticks() - since) < (uint16_t)(req[0] * 4u * MCPAX_TICKS_PER_MS)) {
    }
    return 0;
}

static const mcpax_cmd_t commands[] MCPAX_ROM = {
    { 0x01, 0, 4, read_sensor_handler },
    { 0x02, 1, 0, set_led_handler },
    { 0x03, 0, 1, read_led_handler },
    { 0x04, 1, 0, fail_handler },
    { 0x05, 0, 0, press_handler },
    { 0x06, 1, 0, work_handler },
};

int main(void)
{
    mcpax_port_init();
    for (;;) {
        mcpax_a_poll(commands, sizeof commands / sizeof commands[0]);
    }
}
