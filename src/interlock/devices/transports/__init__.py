"""Transports of devices: whole messages over UART, BLE, SPI, CAN and MQTT; they know no tool."""
