/* A sensor and a lamp, Profile B. The first two tools are the draft's. */
#include "../mcpax.h"
#include "board.h"

#define EVENT_PRESSED 0x40

static uint8_t led;
static uint8_t presses;

static const char word_centigrade[] MCPAX_ROM = "centigrade";
static const char word_led[] MCPAX_ROM = "led";

static int put_map(
    uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len, const char MCPAX_IN_ROM *name, uint16_t value)
{
    uint8_t MCPAX_IN_RAM *at = resp;
    *at++ = (uint8_t)(CBOR_MAP << 5 | 1);
    at = mcpax_put_text(at, name);
    at = mcpax_put_head(at, CBOR_UINT, value);
    *resp_len = (uint16_t)(at - resp);
    return 0;
}

static int dma2d_status_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    (void)args;
    return put_map(resp, resp_len, word_centigrade, led ? 22 : 21);
}

static int set_led_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    uint16_t value;
    if (!mcpax_arg_uint(args, 0, &value)) {
        return MCPAX_BAD_ARGUMENTS;
    }
    led = value != 0;
    board_led(led);
    return put_map(resp, resp_len, word_led, led);
}

#ifndef MCPAX_SMALL
static int fail_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    uint16_t value;
    (void)resp;
    (void)resp_len;
    return mcpax_arg_uint(args, 0, &value) ? (int)value : -1;
}

static int press_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    (void)args;
    presses++;
    return put_map(resp, resp_len, word_led, led);
}

static int work_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    uint16_t value = 0;
    uint16_t since = mcpax_port_ticks();
    mcpax_arg_uint(args, 0, &value);
    while ((uint16_t)(mcpax_port_ticks() - since) < (uint16_t)(value * MCPAX_TICKS_PER_MS)) {
    }
    return put_map(resp, resp_len, word_led, led);
}
#endif

static const mcpax_tool_t tools[] MCPAX_ROM = {
    { 0x01, 0, {0}, CBOR_MAP, dma2d_status_handler },
    { 0x02, 1, {CBOR_UINT}, CBOR_MAP, set_led_handler },
#ifndef MCPAX_SMALL
    { 0x04, 1, {CBOR_UINT}, CBOR_MAP, fail_handler },
    { 0x05, 0, {0}, CBOR_MAP, press_handler },
    { 0x06, 1, {CBOR_UINT}, CBOR_MAP, work_handler },
#endif
};
#define TOOLS (sizeof tools / sizeof tools[0])

int main(void)
{
    mcpax_port_init();
#if !MCPAX_B_LENGTH /* a slave on SPI is asked */
    mcpax_b_announce(tools, TOOLS);
#endif
    for (;;) {
        mcpax_b_poll(tools, TOOLS);
        if (presses) {
            uint8_t map[3];
            map[0] = (uint8_t)(CBOR_MAP << 5 | 1);
            map[1] = 0;
            map[2] = presses & 0x17;
            presses = 0;
            mcpax_b_event(EVENT_PRESSED, map, 3);
        }
    }
}
