/* Profile A: SOF LEN TYPE TOOL_ID SEQ PAYLOAD CRC, answered with the status byte last. All state is on the stack. */
#include "mcpax.h"

#define CALL 0x01
#define RESPONSE 0x02
#define HEARTBEAT 0x04
#define HEAD 3 /* TYPE, TOOL_ID, SEQ */
#define NO_STATUS (-1)

#if MCPAX_A_PAYLOAD_MAX > 123
#error "MCPAX_A_PAYLOAD_MAX: LEN and its CRC-8 take 123 bytes at most"
#endif

static uint8_t crc_step(uint8_t crc, uint8_t byte)
{
    uint8_t bit;
    crc ^= byte;
    for (bit = 0; bit < 8; bit++) {
        crc = (crc & 0x80) ? (uint8_t)(crc << 1) ^ 0x07 : (uint8_t)(crc << 1);
    }
    return crc;
}

static uint8_t put(uint8_t crc, uint8_t byte)
{
    mcpax_port_put(byte);
    return crc_step(crc, byte);
}

static void send(uint8_t type, uint8_t id, uint8_t seq, const uint8_t *payload, uint8_t length, int16_t status)
{
    uint8_t crc;
    mcpax_port_put(MCPAX_A_SOF);
    crc = put(0, (uint8_t)(HEAD + length + (status != NO_STATUS)));
    crc = put(crc, type);
    crc = put(crc, id);
    crc = put(crc, seq);
    while (length--) {
        crc = put(crc, *payload++);
    }
    if (status != NO_STATUS) {
        crc = put(crc, (uint8_t)status);
    }
    mcpax_port_put(crc);
}

void mcpax_a_event(uint8_t id, const uint8_t *payload, uint8_t length)
{
    send(RESPONSE, id, 0, payload, length, NO_STATUS);
}

static void call(const mcpax_cmd_t *commands, uint8_t count, const uint8_t *frame, uint8_t length)
{
    uint8_t response[MCPAX_A_PAYLOAD_MAX];
    uint8_t response_length = 0;
    int status = MCPAX_UNKNOWN_ID;
    for (; count--; commands++) {
        if (mcpax_rom_u8(&commands->cmd_id) != frame[1]) {
            continue;
        }
        status = MCPAX_BAD_ARGUMENTS;
        if (mcpax_rom_u8(&commands->req_len) == length) {
            int (*handler)(const uint8_t *, uint8_t *) =
                mcpax_rom_handler(int (*)(const uint8_t *, uint8_t *), &commands->handler);
            status = handler(frame + HEAD, response);
            if (status == 0) {
                response_length = mcpax_rom_u8(&commands->resp_len);
            } else if ((uint8_t)status == 0) {
                status = 0xFF; /* it failed, whatever its low byte says */
            }
        }
        break;
    }
    send(RESPONSE, frame[1], frame[2], response, response_length, (uint8_t)status);
}

void mcpax_a_poll(const mcpax_cmd_t *commands, uint8_t count)
{
    uint8_t frame[HEAD + MCPAX_A_PAYLOAD_MAX];
    uint8_t at, crc;
    int16_t length, byte;

    if (!mcpax_port_has_byte() || mcpax_port_get() != MCPAX_A_SOF) {
        return;
    }
    length = mcpax_next();
    if (length < HEAD || length > (int16_t)sizeof frame) {
        return;
    }
    crc = crc_step(0, (uint8_t)length);
    for (at = 0; at < length; at++) {
        byte = mcpax_next();
        if (byte < 0) {
            return;
        }
        frame[at] = (uint8_t)byte;
        crc = crc_step(crc, (uint8_t)byte);
    }
    if (mcpax_next() != crc) {
        return;
    }
    if (frame[0] == HEARTBEAT && length == HEAD) {
        send(HEARTBEAT, 0, frame[2], frame, 0, NO_STATUS);
    } else if (frame[0] == CALL) {
        call(commands, count, frame, (uint8_t)(length - HEAD));
    }
}
