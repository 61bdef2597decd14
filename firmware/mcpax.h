/* The reference stub of MCP-AX, Profiles A and B: docs/devices-firmware.md.
 *
 * Freestanding C99: no heap, no library, no interrupt. The tables are the draft's (MCP-AX, Appendix B); the port is the
 * five functions at the end, and MCPAX_TICKS_PER_MS.
 */
#ifndef MCPAX_H
#define MCPAX_H

#include <stdint.h>

/* Tables in program memory. */
#ifdef __AVR__
#include <avr/pgmspace.h>
#define MCPAX_ROM PROGMEM
#define mcpax_rom_u8(address) pgm_read_byte(address)
#define mcpax_rom_handler(type, address) ((type)pgm_read_word(address))
#else
#define MCPAX_ROM
#define mcpax_rom_u8(address) (*(const uint8_t MCPAX_IN_ROM *)(address))
#define mcpax_rom_handler(type, address) (*(address))
#endif

/* The 8051 without --stack-auto: what a pointer points into, how handlers are called, and locals that live across calls.
 * These have a place of their own, as registers would be pushed and popped each time; no function here calls itself. */
#if defined(__SDCC_mcs51) && !defined(__SDCC_STACK_AUTO)
#define MCPAX_IN_RAM __idata
#define MCPAX_IN_ROM __code
#define MCPAX_HANDLER __reentrant
#define MCPAX_KEPT static
#else
#define MCPAX_IN_RAM
#define MCPAX_IN_ROM
#define MCPAX_HANDLER
#define MCPAX_KEPT
#endif

#ifndef MCPAX_GAP_MS
#define MCPAX_GAP_MS 50u /* silence within a frame that gives it up */
#endif

/* What a stub itself answers in place of a handler's number. */
#define MCPAX_BAD_ARGUMENTS 253
#define MCPAX_UNKNOWN_ID 254

/* Profile A: ROM command table -- no CBOR, no schemas on device */
typedef struct {
    uint8_t cmd_id;
    uint8_t req_len;  /* fixed request payload length */
    uint8_t resp_len; /* fixed response payload length */
    int (*handler)(const uint8_t *req, uint8_t *resp);
} mcpax_cmd_t;

#ifndef MCPAX_A_SOF
#define MCPAX_A_SOF 0x7E
#endif
#ifndef MCPAX_A_PAYLOAD_MAX
#define MCPAX_A_PAYLOAD_MAX 32 /* at most 123: LEN is one byte here, and CRC-8 its checksum */
#endif

/* Serves what has arrived, one frame at most; returns at once if nothing has. Call it for ever. */
void mcpax_a_poll(const mcpax_cmd_t *commands, uint8_t count);
void mcpax_a_event(uint8_t id, const uint8_t *payload, uint8_t length);

/* Profile B: self-describing tool table with CBOR type hints */
typedef int (*mcpax_handler_t)(
    const uint8_t MCPAX_IN_RAM *args, uint8_t MCPAX_IN_RAM *resp, uint16_t MCPAX_IN_RAM *resp_len) MCPAX_HANDLER;
typedef struct {
    uint8_t tool_id;
    uint8_t arg_count;
    uint8_t arg_types[4]; /* CBOR major types */
    uint8_t ret_type;
    mcpax_handler_t handler;
} mcpax_tool_t;

#define CBOR_UINT 0
#define CBOR_INT 1
#define CBOR_BYTES 2
#define CBOR_TEXT 3
#define CBOR_ARRAY 4
#define CBOR_MAP 5
#define CBOR_SIMPLE 7

#ifndef MCPAX_B_FRAME_MAX
#define MCPAX_B_FRAME_MAX 96 /* bytes of one message, checksum included; two such buffers are all the RAM there is */
#endif
#ifndef MCPAX_B_CRC
#define MCPAX_B_CRC 0 /* 0, 8 or 16: the checksum within the COBS frame, `crc` of the link */
#endif

#ifndef MCPAX_B_LENGTH
#define MCPAX_B_LENGTH 0 /* 1: messages behind two bytes of length (SPI, BLE) in place of COBS */
#endif

/* Announces all tools: once at power-up; afterwards the gateway asks. */
void mcpax_b_announce(const mcpax_tool_t MCPAX_IN_ROM *tools, uint8_t count);
void mcpax_b_poll(const mcpax_tool_t MCPAX_IN_ROM *tools, uint8_t count);
/* `map` is a CBOR map of at most MCPAX_B_FRAME_MAX - 8 bytes. */
void mcpax_b_event(uint8_t id, const uint8_t MCPAX_IN_RAM *map, uint8_t length);

/* For handlers of Profile B. `args` is a well-formed CBOR map of position to value; `*resp_len` comes as the room in
 * `resp` and goes as the bytes written, which are one CBOR item of ret_type. */
const uint8_t MCPAX_IN_RAM *mcpax_arg(const uint8_t MCPAX_IN_RAM *args, uint8_t position); /* the CBOR item; 0: there is none */
uint8_t mcpax_arg_uint(const uint8_t MCPAX_IN_RAM *args, uint8_t position, uint16_t MCPAX_IN_RAM *number); /* 0: no integer from 0 to 65535 */
uint8_t MCPAX_IN_RAM *mcpax_put_head(uint8_t MCPAX_IN_RAM *at, uint8_t major, uint16_t number);
uint8_t MCPAX_IN_RAM *mcpax_put_text(uint8_t MCPAX_IN_RAM *at, const char MCPAX_IN_ROM *rom_text); /* a MCPAX_ROM string of up to 23 letters */

/* The port: what a chip has to bring. */
void mcpax_port_init(void);
uint8_t mcpax_port_has_byte(void);
uint8_t mcpax_port_get(void);      /* only after mcpax_port_has_byte() */
void mcpax_port_put(uint8_t byte); /* waits until it is taken */
uint16_t mcpax_port_ticks(void);   /* MCPAX_TICKS_PER_MS each millisecond, over all 16 bits */

/* The next byte of a frame, or -1 after MCPAX_GAP_MS of silence. */
int16_t mcpax_next(void);

#endif
