/* What the examples use of a board, beside its port. */
#include <stdint.h>

void board_led(uint8_t is_on);
