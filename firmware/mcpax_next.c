#include "mcpax.h"

int16_t mcpax_next(void)
{
    MCPAX_KEPT uint16_t since;
    since = mcpax_port_ticks();
    while (!mcpax_port_has_byte()) {
        if ((uint16_t)(mcpax_port_ticks() - since) > (uint16_t)(MCPAX_GAP_MS * MCPAX_TICKS_PER_MS)) {
            return -1;
        }
    }
    return mcpax_port_get();
}
