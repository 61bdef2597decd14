#!/bin/sh
# The least a driver's server can be, as quick as one can start: $1 is where it writes when it starts and was listed.
printf 'start %s\n' $$ >>"$1"
while read -r line; do
    id=${line#*\"id\":}
    id=${id%%[,\}]*}
    case $line in
    *'"method":"initialize"'*)
        printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"quick","version":"1"}}}\n' "$id"
        ;;
    *'"method":"server/discover"'*)
        printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}\n' "$id"
        ;;
    *'"method":"tools/list"'*)
        printf 'listed %s\n' $$ >>"$1"
        printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"n":{"type":"integer"},"until":{"type":"string"}}},"outputSchema":{"type":"object"}}]}}\n' "$id"
        ;;
    *'"method":"tools/call"'*)
        printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":{"pid":%s}}}\n' "$id" $$
        ;;
    esac
done
