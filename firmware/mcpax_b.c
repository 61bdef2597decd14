/* Profile B: frames of one CBOR map each, as docs/devices.cddl has them; COBS, or behind their length (SPI). */
#include "mcpax.h"

#define NO_ID 0
#define CALL 1
#define WORD 0x80 /* marks the letter of a text */
#define REGISTRATION (WORD | 'r')
#define HEARTBEAT (WORD | 'h')
#define CRC_BYTES (MCPAX_B_CRC / 8)
#define MAP_OF(pairs) ((uint8_t)(CBOR_MAP << 5 | (pairs)))
#define ARRAY_OF(items) ((uint8_t)(CBOR_ARRAY << 5 | (items)))
#define CBOR_FALSE 0xF4
#define CBOR_TRUE 0xF5
#define ENTRY_BYTES 12 /* at most, of one tool in a registration frame */
#define AROUND_ENTRIES 11
#define ENTRIES_MAX ((MCPAX_B_FRAME_MAX - CRC_BYTES - AROUND_ENTRIES) / ENTRY_BYTES)

#if MCPAX_B_FRAME_MAX < AROUND_ENTRIES + ENTRY_BYTES + CRC_BYTES
#error "MCPAX_B_FRAME_MAX: no tool can be announced in so few bytes"
#endif
#if MCPAX_B_FRAME_MAX > 254
#error "MCPAX_B_FRAME_MAX: a block of COBS has 254 bytes at most"
#endif

static uint8_t MCPAX_IN_RAM request[MCPAX_B_FRAME_MAX];
static uint8_t MCPAX_IN_RAM response[MCPAX_B_FRAME_MAX + 1]; /* and the zero behind it */

/* Reading: `from` and `to` bound what is left of the request. */
static const uint8_t MCPAX_IN_RAM *from;
static const uint8_t MCPAX_IN_RAM *to;
static uint8_t major;
static uint16_t value;
static uint8_t is_larger; /* than `value`, which then is 0xFFFF */

/* Writing: the end of what `response` holds so far. */
static uint8_t MCPAX_IN_RAM *written;

static void put(uint8_t byte)
{
    *written++ = byte;
}

/* A message of two members, of which `key` is the first. */
static void begin(uint8_t key)
{
    written = response;
    put(MAP_OF(2));
    put(key);
}

#if MCPAX_B_CRC
#if MCPAX_B_CRC == 8
typedef uint8_t crc_t;
#define POLYNOMIAL 0x07
#define BEGIN 0
#else
typedef uint16_t crc_t;
#define POLYNOMIAL 0x1021
#define BEGIN 0xFFFF
#endif

static crc_t checksum(const uint8_t MCPAX_IN_RAM *at, const uint8_t MCPAX_IN_RAM *end)
{
    crc_t crc = BEGIN;
    uint8_t bit, is_over;
    while (at != end) {
        crc ^= (crc_t)((crc_t)*at++ << (MCPAX_B_CRC - 8));
        for (bit = 8; bit; bit--) {
            is_over = crc >> (MCPAX_B_CRC - 1);
            crc <<= 1;
            if (is_over) {
                crc ^= POLYNOMIAL;
            }
        }
    }
    return crc;
}
#endif

/* The next item's major type and number; 0: there is none that is allowed. */
static uint8_t read_head(void)
{
    const uint8_t MCPAX_IN_RAM *at = from;
    uint16_t number;
    uint8_t info, bytes, larger = 0;
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
        do {
            if (at == to) {
                return 0;
            }
            larger |= number >> 8;
            number = (uint16_t)(number << 8 | *at++);
        } while (--bytes);
        if (larger) {
            number = 0xFFFF;
        }
    }
    is_larger = larger;
    value = number;
    from = at;
    return 1;
}

/* Passes over one item with all that is in it, without recursion; `major` and `value` are the last head's. */
static uint8_t skip(void)
{
    MCPAX_KEPT uint16_t items;
    items = 1;
    do {
        if (!read_head() || major == 6) {
            return 0;
        }
        if (major >= CBOR_BYTES && major <= CBOR_MAP) {
            if (value > (uint8_t)(to - from)) { /* an item is a byte at least */
                return 0;
            }
            if (major <= CBOR_TEXT) {
                from += (uint8_t)value;
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

/* Takes the next message: `from` and `to` are its bounds; 0: there is none. */
#if MCPAX_B_LENGTH
static uint8_t receive(void)
{
    uint8_t MCPAX_IN_RAM *at = request;
    uint8_t left;
    int16_t next;
    if (!mcpax_port_has_byte() || mcpax_port_get() != 0) { /* the high byte: messages here are short */
        return 0;
    }
    next = mcpax_next();
    if (next <= CRC_BYTES || next > MCPAX_B_FRAME_MAX) { /* 0 is nothing */
        return 0;
    }
    for (left = (uint8_t)next; left; left--) {
        next = mcpax_next();
        if (next < 0) {
            return 0;
        }
        *at++ = (uint8_t)next;
    }
#else
static uint8_t receive(void)
{
    MCPAX_KEPT uint8_t MCPAX_IN_RAM *at;
    MCPAX_KEPT uint8_t left, block, last, is_bad;
    uint8_t byte;
    if (!mcpax_port_has_byte()) {
        return 0;
    }
    at = request;
    left = 0;
    block = 0xFF; /* no zero before the first block */
    is_bad = 0;
    for (;;) {
        int16_t next = mcpax_next();
        if (next < 0) {
            return 0;
        }
        byte = (uint8_t)next;
        if (!byte) {
            break;
        }
        if (left) {
            left--;
        } else {
            last = block;
            block = byte;
            left = byte - 1;
            if (last == 0xFF) {
                continue;
            }
            byte = 0;
        }
        if (at == request + MCPAX_B_FRAME_MAX) {
            is_bad = 1;
        } else {
            *at++ = byte;
        }
    }
    if (left || is_bad || at - request <= CRC_BYTES) {
        return 0;
    }
#endif
    at -= CRC_BYTES;
    from = request;
    to = at;
#if MCPAX_B_CRC == 8
    return checksum(request, at) == *at;
#elif MCPAX_B_CRC == 16
    return checksum(request, at) == (uint16_t)(at[0] << 8 | at[1]);
#else
    return 1;
#endif
}

static void send(void)
{
    MCPAX_KEPT const uint8_t MCPAX_IN_RAM *at;
#if !MCPAX_B_LENGTH
    MCPAX_KEPT const uint8_t MCPAX_IN_RAM *next;
#endif
#if MCPAX_B_CRC == 8
    put((uint8_t)checksum(response, written));
#elif MCPAX_B_CRC == 16
    uint16_t crc = checksum(response, written);
    put((uint8_t)(crc >> 8));
    put((uint8_t)crc);
#endif
    at = response;
#if MCPAX_B_LENGTH
    mcpax_port_put(0);
    mcpax_port_put((uint8_t)(written - at));
    while (at != written) {
        mcpax_port_put(*at++);
    }
#else
    put(0); /* what is behind the last block, as between two */
    next = at;
    do {
        if (!*next) {
            mcpax_port_put((uint8_t)(next - at + 1));
            while (at != next) {
                mcpax_port_put(*at++);
            }
            at++; /* the zero */
        }
        next++;
    } while (next != written);
    mcpax_port_put(0);
#endif
}

uint8_t MCPAX_IN_RAM *mcpax_put_head(uint8_t MCPAX_IN_RAM *at, uint8_t kind, uint16_t number)
{
    uint8_t low = (uint8_t)number, high = (uint8_t)(number >> 8);
    kind = (uint8_t)(kind << 5);
    if (high) {
        *at++ = kind | 25;
        *at++ = high;
    } else if (low >= 24) {
        *at++ = kind | 24;
    } else {
        low |= kind;
    }
    *at++ = low;
    return at;
}

static void put_number(uint8_t number)
{
    written = mcpax_put_head(written, CBOR_UINT, number);
}

uint8_t MCPAX_IN_RAM *mcpax_put_text(uint8_t MCPAX_IN_RAM *at, const char MCPAX_IN_ROM *rom_text)
{
    uint8_t MCPAX_IN_RAM *head = at++;
    uint8_t letter;
    while ((letter = mcpax_rom_u8(rom_text++)) != 0) {
        *at++ = letter;
    }
    *head = (uint8_t)(CBOR_TEXT << 5 | (at - head - 1)); /* up to 23 letters */
    return at;
}

const uint8_t MCPAX_IN_RAM *mcpax_arg(const uint8_t MCPAX_IN_RAM *args, uint8_t position)
{
    MCPAX_KEPT uint8_t pairs, key;
    from = args;
    to = request + MCPAX_B_FRAME_MAX;
    read_head();
    for (pairs = (uint8_t)value; pairs; pairs--) {
        key = *from;
        skip();
        if (key == position) {
            return from;
        }
        skip();
    }
    return 0;
}

uint8_t mcpax_arg_uint(const uint8_t MCPAX_IN_RAM *args, uint8_t position, uint16_t MCPAX_IN_RAM *number)
{
    if (!mcpax_arg(args, position)) {
        return 0;
    }
    read_head();
    *number = value;
    return major == CBOR_UINT && !is_larger;
}

void mcpax_b_event(uint8_t id, const uint8_t MCPAX_IN_RAM *map, uint8_t length)
{
    begin(1);
    put_number(id);
    put(3);
    while (length--) {
        put(*map++);
    }
    send();
}

void mcpax_b_announce(const mcpax_tool_t MCPAX_IN_ROM *table, uint8_t count)
{
    MCPAX_KEPT const mcpax_tool_t MCPAX_IN_ROM *tools;
    MCPAX_KEPT uint8_t part, entries, is_part, types;
    const uint8_t MCPAX_IN_ROM *type;
    tools = table;
    part = 0;
    do {
        is_part = part;
        entries = count;
        if (count > ENTRIES_MAX) {
            entries = ENTRIES_MAX;
            is_part = 1;
        }
        count -= entries;
        begin(1);
        if (is_part) {
            response[0] = MAP_OF(4);
        }
        put(0x61);
        put('r');
        put(3);
        put(ARRAY_OF(entries));
        for (; entries; entries--) {
            put(MAP_OF(3));
            put(0);
            put_number(mcpax_rom_u8(&tools->tool_id));
            put(1);
            types = mcpax_rom_u8(&tools->arg_count);
            put(ARRAY_OF(types));
            type = tools->arg_types;
            while (types) {
                put(mcpax_rom_u8(type));
                type++;
                types--;
            }
            put(2);
            put(mcpax_rom_u8(&tools->ret_type));
            tools++;
        }
        if (is_part) {
            put(6);
            put(count ? CBOR_TRUE : CBOR_FALSE);
            put(7);
            put_number(part++);
        }
        send();
    } while (count);
}

static void call(const mcpax_tool_t MCPAX_IN_ROM *tools, uint8_t count, uint8_t tool_id, const uint8_t MCPAX_IN_RAM *args)
{
    uint8_t kind;
    MCPAX_KEPT int status;
    MCPAX_KEPT uint16_t length;
    status = MCPAX_UNKNOWN_ID;
    for (; count; count--) {
        if (mcpax_rom_u8(&tools->tool_id) == tool_id) {
            status = MCPAX_BAD_ARGUMENTS;
            if (*args == MAP_OF(mcpax_rom_u8(&tools->arg_count))) {
                length = (uint8_t)(response + MCPAX_B_FRAME_MAX - CRC_BYTES - 1 - written);
                status = mcpax_rom_handler(mcpax_handler_t, &tools->handler)(args, written + 1, &length);
                if (!status) {
                    put(4);
                    written += (uint8_t)length;
                    return;
                }
            }
            break;
        }
        tools++;
    }
    put(5);
    kind = CBOR_UINT;
    if (status < 0) {
        kind = CBOR_INT;
        status = ~status;
    }
    written = mcpax_put_head(written, kind, (uint16_t)status);
}

void mcpax_b_poll(const mcpax_tool_t MCPAX_IN_ROM *tools, uint8_t count)
{
    MCPAX_KEPT const uint8_t MCPAX_IN_RAM *args;
    MCPAX_KEPT const uint8_t MCPAX_IN_RAM *begun;
    MCPAX_KEPT uint8_t pairs, key, id, method, word;

    if (!receive() || !read_head() || major != CBOR_MAP || value >> 8) {
        return;
    }
    pairs = (uint8_t)value;
    request[0] = MAP_OF(0); /* no arguments */
    args = request;
    id = NO_ID;
    method = 0;
    word = 0;
    for (; pairs; pairs--) {
        if (from == to) {
            return;
        }
        key = *from; /* keys of one byte alone are ours */
        if (!skip()) {
            return;
        }
        begun = from;
        if (!skip()) {
            return;
        }
        if (key == 3) {
            args = begun;
        } else if (major == CBOR_TEXT) {
            if (key == 1) {
                word = 0;
                if (value == 1) {
                    word = WORD | begun[1];
                }
            }
        } else if (major == CBOR_UINT && !(value >> 8)) {
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
    begin(2);
    put_number(id);
    if (word == CALL) {
        call(tools, count, method, args);
    } else {
        put(4);
        put(MAP_OF(0));
    }
    send();
}
