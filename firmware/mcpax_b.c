/* Profile B: frames of one CBOR map each, as docs/devices.cddl has them; COBS, or behind their length (SPI). */
#include "mcpax.h"

#define NO_ID 0
#define CALL 1
#define WORD 0x80 /* marks the letter of a text */
#define REGISTRATION (WORD | 'r')
#define HEARTBEAT (WORD | 'h')
#define CRC_BYTES (MCPAX_B_CRC / 8)
#define ENTRY_BYTES 12 /* at most, of one tool in a registration frame */
#define AROUND_ENTRIES 11
#define ENTRIES_MAX ((MCPAX_B_FRAME_MAX - CRC_BYTES - AROUND_ENTRIES) / ENTRY_BYTES)

#if MCPAX_B_FRAME_MAX < AROUND_ENTRIES + ENTRY_BYTES + CRC_BYTES
#error "MCPAX_B_FRAME_MAX: no tool can be announced in so few bytes"
#endif
#if MCPAX_B_FRAME_MAX > 254
#error "MCPAX_B_FRAME_MAX: a block of COBS has 254 bytes at most"
#endif

static uint8_t request[MCPAX_B_FRAME_MAX];
static uint8_t response[MCPAX_B_FRAME_MAX];

/* Reading: `from` and `to` bound what is left of the request. */
static const uint8_t *from, *to;
static uint8_t major;
static uint16_t value;
static uint8_t is_larger; /* than `value`, which then is 0xFFFF */

/* Writing: what `response` holds so far. */
static uint8_t used;

static void put(uint8_t byte)
{
    response[used++] = byte;
}

#if MCPAX_B_CRC == 8
static uint16_t checksum(const uint8_t *at, uint8_t length)
{
    uint8_t crc = 0, bit;
    while (length--) {
        crc ^= *at++;
        for (bit = 0; bit < 8; bit++) {
            crc = (crc & 0x80) ? (uint8_t)(crc << 1) ^ 0x07 : (uint8_t)(crc << 1);
        }
    }
    return crc;
}
#elif MCPAX_B_CRC == 16
static uint16_t checksum(const uint8_t *at, uint8_t length)
{
    uint16_t crc = 0xFFFF;
    uint8_t bit;
    while (length--) {
        crc ^= (uint16_t)*at++ << 8;
        for (bit = 0; bit < 8; bit++) {
            crc = (crc & 0x8000) ? (uint16_t)(crc << 1) ^ 0x1021 : (uint16_t)(crc << 1);
        }
    }
    return crc;
}
#endif

/* The next item's major type and number; 0: there is none that is allowed. */
static uint8_t read_head(void)
{
    const uint8_t *at = from;
    uint16_t number;
    uint8_t info, bytes = 0;
    if (at == to) {
        return 0;
    }
    info = *at++;
    major = info >> 5;
    info &= 0x1F;
    number = info;
    if (info >= 24) {
        if (info > 27) {
            return 0;
        }
        number = 0;
        bytes = (uint8_t)(1 << (info - 24));
        if (bytes > (uint8_t)(to - at)) {
            return 0;
        }
    }
    is_larger = 0;
    while (bytes--) {
        if (number > 0xFF) {
            is_larger = 1;
        }
        number = (uint16_t)(number << 8 | *at++);
    }
    if (is_larger) {
        number = 0xFFFF;
    }
    value = number;
    from = at;
    return 1;
}

/* Passes over one item with all that is in it, without recursion; `major` and `value` are the last head's. */
static uint8_t skip(void)
{
    uint16_t items = 1;
    do {
        if (!read_head() || major == 6) {
            return 0;
        }
        if (major >= CBOR_BYTES && major <= CBOR_MAP) {
            if (value > (uint16_t)(to - from)) { /* an item is a byte at least */
                return 0;
            }
            if (major <= CBOR_TEXT) {
                from += value;
            } else {
                items += value;
                if (major == CBOR_MAP) {
                    items += value;
                }
            }
        }
    } while (--items);
    return 1;
}

#if MCPAX_B_LENGTH
/* The length of the next message in `request`; 0: none. */
static uint8_t receive(void)
{
    uint8_t length, at;
    int16_t byte;
    if (!mcpax_port_has_byte() || mcpax_port_get() != 0) { /* the high byte: messages here are short */
        return 0;
    }
    byte = mcpax_next();
    if (byte <= CRC_BYTES || byte > MCPAX_B_FRAME_MAX) { /* 0 is nothing */
        return 0;
    }
    length = (uint8_t)byte;
    for (at = 0; at < length; at++) {
        byte = mcpax_next();
        if (byte < 0) {
            return 0;
        }
        request[at] = (uint8_t)byte;
    }
#else
/* The length of the next message in `request`; 0: none. */
static uint8_t receive(void)
{
    uint8_t length = 0, left = 0, block = 0xFF, is_bad = 0;
    if (!mcpax_port_has_byte()) {
        return 0;
    }
    for (;;) {
        int16_t byte = mcpax_next();
        if (byte < 0) {
            return 0;
        }
        if (byte == 0) {
            break;
        }
        if (left) {
            left--;
        } else {
            uint8_t has_zero = block != 0xFF;
            block = (uint8_t)byte;
            left = block - 1;
            if (!has_zero) {
                continue;
            }
            byte = 0;
        }
        if (length < MCPAX_B_FRAME_MAX) {
            request[length++] = (uint8_t)byte;
        } else {
            is_bad = 1;
        }
    }
    if (left || is_bad || length <= CRC_BYTES) {
        return 0;
    }
#endif
    length -= CRC_BYTES;
#if MCPAX_B_CRC == 8
    if (checksum(request, length) != request[length]) {
        return 0;
    }
#elif MCPAX_B_CRC == 16
    if (checksum(request, length) != (uint16_t)(request[length] << 8 | request[length + 1])) {
        return 0;
    }
#endif
    return length;
}

static void send(void)
{
    const uint8_t *at = response, *end;
#if !MCPAX_B_LENGTH
    const uint8_t *next = response;
#endif
#if MCPAX_B_CRC == 8
    put((uint8_t)checksum(response, used));
#elif MCPAX_B_CRC == 16
    uint16_t crc = checksum(response, used);
    put((uint8_t)(crc >> 8));
    put((uint8_t)crc);
#endif
    end = response + used;
#if MCPAX_B_LENGTH
    mcpax_port_put(0);
    mcpax_port_put(used);
    used = 0;
    while (at != end) {
        mcpax_port_put(*at++);
    }
#else
    used = 0;
    for (;;) {
        if (next == end || !*next) {
            mcpax_port_put((uint8_t)(next - at + 1));
            while (at != next) {
                mcpax_port_put(*at++);
            }
            if (next == end) {
                break;
            }
            at++; /* the zero */
        }
        next++;
    }
    mcpax_port_put(0);
#endif
}

uint8_t *mcpax_put_head(uint8_t *at, uint8_t kind, uint16_t number)
{
    uint8_t head = (uint8_t)(kind << 5);
    if (number < 24) {
        *at++ = head | (uint8_t)number;
        return at;
    }
    if (number > 0xFF) {
        *at++ = head | 25;
        *at++ = (uint8_t)(number >> 8);
    } else {
        *at++ = head | 24;
    }
    *at++ = (uint8_t)number;
    return at;
}

static void put_number(uint8_t kind, uint16_t number)
{
    used = (uint8_t)(mcpax_put_head(response + used, kind, number) - response);
}

uint8_t *mcpax_put_text(uint8_t *at, const char *rom_text)
{
    uint8_t *head = at++;
    uint8_t letter;
    while ((letter = mcpax_rom_u8(rom_text++)) != 0) {
        *at++ = letter;
    }
    *head = (uint8_t)(CBOR_TEXT << 5 | (at - head - 1)); /* up to 23 letters */
    return at;
}

const uint8_t *mcpax_arg(const uint8_t *args, uint8_t position)
{
    uint8_t pairs;
    from = args;
    to = request + MCPAX_B_FRAME_MAX;
    read_head();
    for (pairs = (uint8_t)value; pairs; pairs--) {
        uint8_t key = *from;
        skip();
        if (key == position) {
            return from;
        }
        skip();
    }
    return 0;
}

uint8_t mcpax_arg_uint(const uint8_t *args, uint8_t position, uint16_t *number)
{
    if (!mcpax_arg(args, position)) {
        return 0;
    }
    read_head();
    *number = value;
    return major == CBOR_UINT && !is_larger;
}

void mcpax_b_event(uint8_t id, const uint8_t *map, uint8_t length)
{
    put(0xA2);
    put(1);
    put_number(CBOR_UINT, id);
    put(3);
    while (length--) {
        put(*map++);
    }
    send();
}

void mcpax_b_announce(const mcpax_tool_t *tools, uint8_t count)
{
    uint8_t part = 0;
    do {
        uint8_t entries = count < ENTRIES_MAX ? count : ENTRIES_MAX;
        uint8_t is_part = part || entries < count;
        count -= entries;
        put(is_part ? 0xA4 : 0xA2);
        put(1);
        put(0x61);
        put('r');
        put(3);
        put((uint8_t)(CBOR_ARRAY << 5 | entries));
        for (; entries; entries--) {
            const uint8_t *type = tools->arg_types;
            uint8_t arguments = mcpax_rom_u8(&tools->arg_count);
            put(0xA3);
            put(0);
            put_number(CBOR_UINT, mcpax_rom_u8(&tools->tool_id));
            put(1);
            put((uint8_t)(CBOR_ARRAY << 5 | arguments));
            while (arguments--) {
                put(mcpax_rom_u8(type));
                type++;
            }
            put(2);
            put(mcpax_rom_u8(&tools->ret_type));
            tools++;
        }
        if (is_part) {
            put(6);
            put(count ? 0xF5 : 0xF4);
            put(7);
            put_number(CBOR_UINT, part++);
        }
        send();
    } while (count);
}

static void call(const mcpax_tool_t *tools, uint8_t count, uint8_t tool_id, const uint8_t *args)
{
    int status = MCPAX_UNKNOWN_ID;
    for (; count--; tools++) {
        if (mcpax_rom_u8(&tools->tool_id) == tool_id) {
            status = MCPAX_BAD_ARGUMENTS;
            if ((args ? *args : CBOR_MAP << 5) == (CBOR_MAP << 5 | mcpax_rom_u8(&tools->arg_count))) {
                int (*handler)(const uint8_t *, uint8_t *, uint16_t *) =
                    mcpax_rom_handler(int (*)(const uint8_t *, uint8_t *, uint16_t *), &tools->handler);
                uint16_t length = (uint16_t)(MCPAX_B_FRAME_MAX - CRC_BYTES - 1 - used);
                status = handler(args, response + used + 1, &length);
                if (!status) {
                    put(4);
                    used += (uint8_t)length;
                    return;
                }
            }
            break;
        }
    }
    put(5);
    if (status < 0) {
        put_number(CBOR_INT, (uint16_t)~status);
    } else {
        put_number(CBOR_UINT, (uint16_t)status);
    }
}

void mcpax_b_poll(const mcpax_tool_t *tools, uint8_t count)
{
    const uint8_t *args = 0, *begin;
    uint8_t pairs, length, key, id = NO_ID, method = 0, word = 0;

    length = receive();
    from = request;
    to = request + length;
    if (!read_head() || major != CBOR_MAP || value > length) {
        return;
    }
    for (pairs = (uint8_t)value; pairs; pairs--) {
        if (from == to) {
            return;
        }
        key = *from; /* keys of one byte alone are ours */
        if (!skip()) {
            return;
        }
        begin = from;
        if (!skip()) {
            return;
        }
        if (key == 3) {
            args = begin;
        } else if (major == CBOR_TEXT) {
            if (key == 1) {
                word = value == 1 ? WORD | begin[1] : 0;
            }
        } else if (major == CBOR_UINT && value < 0x100) {
            if (key == 1) {
                method = (uint8_t)value;
                word = CALL;
            } else if (key == 2) {
                id = (uint8_t)value;
            }
        }
    }
    if (from != to) {
        return;
    }
    if (word == REGISTRATION) {
        mcpax_b_announce(tools, count);
        return;
    }
    if (id == NO_ID || (word != CALL && word != HEARTBEAT)) {
        return;
    }
    put(0xA2);
    put(2);
    put_number(CBOR_UINT, id);
    if (word == CALL) {
        call(tools, count, method, args);
    } else {
        put(4);
        put(0xA0);
    }
    send();
}
