/* An ATmega328P under libsimavr, seen from the other end of its SPI: what `xfer2` would do, for tests by ctypes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <simavr/avr_ioport.h>
#include <simavr/avr_spi.h>
#include <simavr/sim_avr.h>
#include <simavr/sim_elf.h>
#include <simavr/sim_irq.h>

#define CYCLES_PER_BYTE 4000 /* 250 microseconds */

typedef struct {
    avr_t *avr;
    avr_irq_t *input;
    avr_irq_t *select;
    uint8_t output;
} chip_t;

static void on_output(struct avr_irq_t *irq, uint32_t value, void *chip)
{
    (void)irq;
    ((chip_t *)chip)->output = (uint8_t)value;
}

static void run(chip_t *chip, uint32_t cycles)
{
    avr_cycle_count_t until = chip->avr->cycle + cycles;
    while (chip->avr->cycle < until) {
        avr_run(chip->avr);
    }
}

chip_t *chip_start(const char *elf)
{
    elf_firmware_t firmware;
    chip_t *chip = calloc(1, sizeof *chip);
    memset(&firmware, 0, sizeof firmware);
    if (!chip || elf_read_firmware(elf, &firmware)) {
        free(chip);
        return NULL;
    }
    chip->avr = avr_make_mcu_by_name("atmega328p");
    if (!chip->avr) {
        free(chip);
        return NULL;
    }
    avr_init(chip->avr);
    firmware.frequency = 16000000;
    avr_load_firmware(chip->avr, &firmware);
    chip->avr->log = LOG_NONE;
    chip->input = avr_io_getirq(chip->avr, AVR_IOCTL_SPI_GETIRQ(0), SPI_IRQ_INPUT);
    chip->select = avr_io_getirq(chip->avr, AVR_IOCTL_IOPORT_GETIRQ('B'), 2);
    avr_irq_register_notify(avr_io_getirq(chip->avr, AVR_IOCTL_SPI_GETIRQ(0), SPI_IRQ_OUTPUT), on_output, chip);
    avr_raise_irq(chip->select, 1);
    run(chip, 16000);
    return chip;
}

/* One transaction: selects the chip, exchanges `count` bytes, and lets it go. */
void chip_xfer(chip_t *chip, const uint8_t *out, uint8_t *in, uint32_t count)
{
    avr_raise_irq(chip->select, 0);
    while (count--) {
        avr_raise_irq(chip->input, *out++);
        *in++ = chip->output;
        run(chip, CYCLES_PER_BYTE);
    }
    avr_raise_irq(chip->select, 1);
    run(chip, CYCLES_PER_BYTE * 4);
}

/* Time passes. */
void chip_run(chip_t *chip, uint32_t cycles)
{
    run(chip, cycles);
}

void chip_reset(chip_t *chip)
{
    avr_reset(chip->avr);
    run(chip, 16000);
}

void chip_stop(chip_t *chip)
{
    avr_terminate(chip->avr);
    free(chip);
}
