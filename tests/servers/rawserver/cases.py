"""Results whose bytes are known: the tool `exact` returns RESULTS[case], in the modern era with resultType put first.

A differential test asks a server for one of these directly and through a gateway, and compares with these very bytes.
"""

from .text import prepend, string

_TEXT = '"content":[{"type":"text","text":"ok"}]'

RESULTS: dict[str, str] = {
    "plain": "{" + _TEXT + "}",
    "empty-content": '{"content":[]}',
    "empty-objects": '{"content":[],"structuredContent":{},"_meta":{},"x":{},"y":[],"z":{"a":{}}}',
    "nulls": '{"content":[],"structuredContent":{"a":null},"x-null":null}',
    "key-order": '{"zebra":1,"content":[],"apple":2,"structuredContent":{"z":1,"a":2,"m":{"q":0,"b":0}},"mango":3}',
    "spaces": '{ "content" : [ ] ,\t"structuredContent" : { "a" : 1 }  }',
    "unknown-fields": '{"content":[{"type":"text","text":"ok","x-score":0.5,"annotations":{"audience":["user"],'
    '"x-deep":{"k":[1]}}}],"x-vendor":{"a":[{"b":[]}]},"isError":false}',
    "unknown-content": '{"content":[{"type":"hologram","frames":[1,2,3],"codec":"x/y"},{"type":"text","text":""}]}',
    "resource-link": '{"content":[{"type":"resource_link","uri":"raw://text","name":"text","x-hint":true}]}',
    "binary-content": '{"content":[{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"},'
    '{"type":"audio","data":"UklGRg==","mimeType":"audio/wav"},'
    '{"type":"resource","resource":{"uri":"raw://blob","mimeType":"application/octet-stream","blob":"AAEC"}}]}',
    "big-integers": '{"content":[],"structuredContent":{"bits63":9223372036854775807,"bits64":18446744073709551615,'
    '"bits80":1208925819614629174706175,"minus80":-1208925819614629174706175,"digits100":' + "9" * 100 + "}}",
    "odd-numbers": '{"content":[],"structuredContent":{"one":1.0,"minus":-0,"minusf":-0.0,"exp":1E5,"small":1e-7,'
    '"long":0.1000000000000000055511151231257827,"huge":1e308,"tenth":0.10}}',
    "unicode": '{"content":[{"type":"text","text":"\u00e9 e\u0301 \\u00e9 \\u0065\\u0301 \\/ / \\ud83d\\ude00 '
    '\U0001f600 \u2028 \\u0000 \ufeff \u202e"}],'
    '"structuredContent":{"\u00e9":1,"e\u0301":2,"\u212b":3,"\u00c5":4,"":5}}',
    "deep": '{"content":[],"structuredContent":{"a":' + '{"a":[' * 2500 + "]}" * 2500 + '},"isError":false}',
    "half-a-pair": '{"content":[{"type":"text","text":"\\ud83d"}],"structuredContent":{"a":"\\udfff x"}}',
    "structured-array": '{"content":[],"structuredContent":[ 1.0,{"a":1208925819614629174706175} ]}',
    "structured-string": '{"content":[],"structuredContent":"é \\u00e9"}',
    "structured-number": '{"content":[{"type":"text","text":"a number"}],"structuredContent":1E5}',
    "structured-false": '{"content":[],"structuredContent":false}',
    "structured-null": '{"content":[],"structuredContent":null}',
    "large": '{"content":[{"type":"text","text":"' + "é\\n" * 250_000 + '"}]}',
    "repeated-keys": '{"content":[],"structuredContent":{"a":1,"a":2}}',
    "vendor-meta": '{"_meta":{"com.example/trace":{"n":18446744073709551616},"traceparent":"00-0-0-00"},' + _TEXT + "}",
    "tool-error": '{"content":[{"type":"text","text":"it broke"}],"isError":true,"x-why":{"code":7}}',
    "resultlike-text": '{"content":[{"type":"text","text":' + string('"id":1,"result":{},"error":{"code":1}') + "}]}",
}


def result(case: str, era: str) -> str:
    """The exact text of `result` that a server of this era answers with."""
    return RESULTS[case] if era == "legacy" else prepend([("resultType", '"complete"')], RESULTS[case])
