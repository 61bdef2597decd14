/* Sixteen tools, Profile B: for the size of their table, and for an announcement of several frames. */
#include "../mcpax.h"
#include "board.h"

static int nothing_handler(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER
{
    (void)args;
    resp[0] = (uint8_t)(CBOR_MAP << 5);
    *resp_len = 1;
    return 0;
}

static const mcpax_tool_t tools[] MCPAX_ROM = {
    { 0x01, 1, {CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x02, 2, {CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x03, 3, {CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x04, 4, {CBOR_UINT, CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x05, 0, {0}, CBOR_MAP, nothing_handler },
    { 0x06, 1, {CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x07, 2, {CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x08, 3, {CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x09, 4, {CBOR_UINT, CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x0A, 0, {0}, CBOR_MAP, nothing_handler },
    { 0x0B, 1, {CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x0C, 2, {CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x0D, 3, {CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x0E, 4, {CBOR_UINT, CBOR_UINT, CBOR_UINT, CBOR_UINT}, CBOR_MAP, nothing_handler },
    { 0x0F, 0, {0}, CBOR_MAP, nothing_handler },
    { 0x10, 1, {CBOR_UINT}, CBOR_MAP, nothing_handler },
};
#define TOOLS (sizeof tools / sizeof tools[0])

int main(void)
{
    mcpax_port_init();
    mcpax_b_announce(tools, TOOLS);
    for (;;) {
        mcpax_b_poll(tools, TOOLS);
    }
}
