"""Secrets in the texts of a file: placeholders for secrets, and credentials in clear text.

The only placeholder is `${secrets.NAME}`. `${context.X}` and `${user.X}` have a specific error: they would bind one
caller to a process that all callers share (AIP-security-8).

A credential in clear text is recognised by the form of the text and by the name under which it is written. This check
is used for files that must not contain credentials (AIP-19.file-2, AIP-19.plain-2), and for the import of files that
do. It can miss a credential or take another text for one; a person can correct the latter with
metadata.interlock.not_secret. No function here repeats a checked text in a message.
"""

import itertools
import math
import re
from typing import Final

SECRET: Final = re.compile(r"\$\{secrets\.([A-Z][A-Z0-9_]*)\}", re.ASCII)  # AIP-19.bind-1
SECRET_NAME: Final = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
PLACEHOLDER_INVALID: Final = "placeholder_invalid"
USER_CONTEXT: Final = "user_context_at_spawn"


def secret_names(text: str) -> tuple[str, ...]:
    """Return the NAME of each placeholder ${secrets.NAME} in a text, in order."""
    return tuple(SECRET.findall(text))


def find_placeholder_fault(text: str) -> str | None:
    """Return the code of the problem with a placeholder such as ${context.user} in a text, or None if all placeholders
    are valid.
    """
    rest = SECRET.sub("", text)
    if "${context." in rest or "${user." in rest:  # AIP-security-8
        return USER_CONTEXT
    return PLACEHOLDER_INVALID if "${" in rest else None  # AIP-server-13


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_TOKENS: Final = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      gh[pousr]_[A-Za-z0-9]{4,} | github_pat_\w{4,} | glpat-[\w-]{8,}
    | sk-[A-Za-z0-9_-]{8,} | [sr]k_(?:live|test)_\w{4,} | whsec_\w{8,}
    | (?:AKIA|ASIA)[A-Z0-9]{8,} | AIza[\w-]{20,} | ya29\.[\w-]{10,}
    | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,} | hf_[A-Za-z0-9]{16,} | npm_[A-Za-z0-9]{16,} | pypi-[\w-]{16,}
    | dop_v1_\w{16,} | shpat_\w{16,} | SG\.[\w-]{8,}\.[\w-]{8,} | lin_api_\w{8,} | ntn_\w{16,} | secret_[A-Za-z0-9]{32,}
    | eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    )|-----BEGIN[ A-Z]*PRIVATE\ KEY""",
    re.VERBOSE | re.ASCII,
)
_USERINFO: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/@:]{0,200}:([^\s/@]{1,500})@")
_PASSWORD_FIELD: Final = re.compile(
    r"(?:^|[;?&\s])(?:password|passwd|passphrase|pass|pwd|accountkey|sharedaccesskey|sharedaccesssignature)"
    r"\s*=\s*[^\s;&]+|[?&](?:sig|signature|(?:access_?|auth_?)?token|api_?key|(?:client_?)?secret)=[^\s;&]+",
    re.I,
)
_HEADER: Final = re.compile(r"\s*(?P<name>[A-Za-z][A-Za-z0-9-]{1,60}):(?!//)\s*(?P<value>\S.*)", re.DOTALL)
_ASSIGNED: Final = re.compile(r"(?P<name>-{0,2}[A-Za-z][A-Za-z0-9_-]{0,100})=(?P<value>.*)", re.DOTALL)
_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)
_PASSWORDS: Final = _set("password passwords passwd passwort pass pwd pw pword passphrase passcode pin pincode secret")
_SECRET_LAST: Final = _PASSWORDS | _set(
    "token credential credentials creds key keys apikey pat auth authorization cookie bearer jwt otp totp psk mnemonic "
    "secretkey accesskey privatekey authkey masterkey sshkey signingkey accountkey encryptionkey"
)
_PASSWORD_ENDS: Final = ("password", "passwd", "passphrase", "secret", "pass", "pwd")  # PGPASSWORD, DBPASS
_OTHER_WORDS: Final = _set("compass bypass encompass surpass trespass overpass underpass")
_NOT_BEFORE_KEY: Final = frozenset(["public", "primary", "foreign", "partition", "sort", "row", "cache", "index"])
_SPEAKING: Final = _set(
    "token secret password passwd passphrase credential credentials creds auth authorization dsn cookie"
)
_DOUBTFUL: Final = _set("pass pwd pw pin private signature sig session sas salt jwt otp")
_SETTINGS: Final = _set(
    "url uri host port path dir directory folder file mode name type kind enabled timeout ttl seconds minutes lifetime "
    "expiry length limit size max min count provider backend driver method format algorithm version level through "
    "network networks registry repo repos subnet store storage manager policy header prefix"
)
_SPEAKING_PAIRS: Final = frozenset(
    [("api", "key"), ("access", "key"), ("private", "key"), ("connection", "string"), ("pass", "word")]
)
_PIECE: Final = re.compile(r"[A-Za-z0-9_+=-]{20,4096}", re.ASCII)
_MIXED_CHARS_MIN: Final = 10
_CASE_CHANGES_MIN: Final = 0.42  # per character; camelCase has a third
_BITS_MIN: Final = 2.8  # a UUID has about 3.3, a word repeated far less
_ADDRESS: Final = re.compile(r"https?://[\w.:-]{1,300}(?:/[\w./~-]{0,500})?", re.ASCII)
_HARMLESS: Final = re.compile(r"(?i:|true|false|yes|no|on|off|none|null|auto|[0-9]{1,5})")
_HARMLESS_PASSWORD: Final = re.compile(r"(?i:|true|false|yes|no|on|off|none|null|auto|[0-9])")  # not 1234
_ATTACHED: Final = re.compile(
    r"-p(?=[^=]*[^a-z=-])(?![0-9.:]*\Z)(?P<value>[^\s=]{3,500})"
)  # -pS3cret; not -port, -p8080
_PLAIN_VALUE: Final = re.compile(
    r"[0-9.:]{1,40}(?:/(?:tcp|udp))?|@[\w.-]{1,100}/[\w.@-]{1,100}|[\w.-]{1,100}\.(?:json|toml|ya?ml|[jt]s|py|pem|crt|txt|ini)",
    re.ASCII,
)
_PATH: Final = re.compile(r"(?:~|\.{1,2})?/(?:[\w.@-]{1,40}/){0,20}[\w.@-]{1,40}", re.ASCII)


def holds_token(text: str) -> bool:
    """Return whether a text contains something with the form of a credential, such as sk-... or a password in a URL."""
    rest = SECRET.sub("", text)
    if _TOKENS.search(rest) or _PASSWORD_FIELD.search(rest):
        return True
    # The text as written is searched, so that a placeholder in the place of the password is recognised.
    return any(not SECRET.fullmatch(userinfo[1]) for userinfo in _USERINFO.finditer(text))


def names_secret(name: str) -> bool:
    """Return whether a setting of this name has a secret value, such as API_KEY. The last word of the name decides.

    This is true of GITHUB_TOKEN, X-API-Key, --api-key, PGPASSWORD and KEY_2, and false of MAX_TOKENS, TOKEN_URL,
    PUBLIC_KEY and COMPASS.
    """
    words = _name_words(name)
    if not words or not (words[-1] in _SECRET_LAST or _ends(words[-1], (*_PASSWORD_ENDS, "token", "apikey"))):
        return False
    return not (words[-1] in {"key", "keys"} and len(words) > 1 and words[-2] in _NOT_BEFORE_KEY)


def names_password(name: str) -> bool:
    """Return whether a setting of this name has a password, such as DB_PASS or PIN, so that even a short number is a
    secret.
    """
    words = _name_words(name)
    return names_secret(name) and (words[-1] in _PASSWORDS or _ends(words[-1], _PASSWORD_ENDS))


def _name_words(name: str) -> list[str]:
    """Return the words of a name in lower case, without a number at the end."""
    words = [each.lower() for each in _WORDS.findall(name[:200])]
    while len(words) > 1 and words[-1].isdigit():
        words.pop()
    return words


def _ends(word: str, ends: tuple[str, ...]) -> bool:
    return word.endswith(ends) and word not in _OTHER_WORDS


def is_plaintext(name: str, text: str) -> bool:
    """Return whether the value `text` of the setting `name` is a credential in clear text."""
    if holds_token(text):
        return True
    if not names_secret(name) or SECRET.search(text):
        return False
    harmless = _HARMLESS_PASSWORD if names_password(name) else _HARMLESS
    return not (harmless.fullmatch(text) or _PATH.fullmatch(text))


def may_be_secret(name: str, text: str) -> bool:
    """Return whether the value `text` of an imported setting may be a secret. In doubt, return True (AIP-import-6).

    This includes every text whose name contains a word for a secret, and long random text. Plain settings, paths and
    addresses are not secrets.
    """
    if is_plaintext(name, text):
        return True
    if SECRET.search(text) or _HARMLESS.fullmatch(text) or _PATH.fullmatch(text):
        return False
    words = _name_words(name)
    speaks_of_secrets = (
        not _SPEAKING.isdisjoint(words)
        or any(pair in _SPEAKING_PAIRS for pair in itertools.pairwise(words))
        # The last word does not make it a plain setting.
        or (bool(words) and words[-1] not in _SETTINGS and not _DOUBTFUL.isdisjoint(words))
    )
    return looks_random(text) or (speaks_of_secrets and not _ADDRESS.fullmatch(text))  # AIP-import-6


def short_flag_may_be_secret(flag: str, text: str) -> bool:
    """Return whether the value X of `-p X`, `-P X` or `-k X` may be a secret.

    The flag alone does not decide: a port, path, address, version, package name or file name is not a secret.
    """
    # -p is a password as often as a port.
    if flag not in {"p", "P", "k"} or SECRET.search(text) or _HARMLESS.fullmatch(text):
        return False
    return not (_PATH.fullmatch(text) or _ADDRESS.fullmatch(text) or _PLAIN_VALUE.fullmatch(text))


def attached_value(argument: str) -> str | None:
    """Return the part X of an argument such as `-pX` if X may be a password, otherwise None."""
    parts = _ATTACHED.fullmatch(argument)
    return parts["value"] if parts is not None and short_flag_may_be_secret("p", parts["value"]) else None


def looks_random(text: str) -> bool:
    """Return whether the text contains 20 or more consecutive characters that are mixed as in a random key.

    Words joined by dashes, as in the names of models and packages, do not count.
    """
    return any(
        sum(len(part) for part in re.split("[-_]", piece) if _is_mixed(part)) >= _MIXED_CHARS_MIN
        # The entropy of the characters, which is low for a repeated word.
        and -sum(share * math.log2(share) for each in set(piece) if (share := piece.count(each) / len(piece)))
        >= _BITS_MIN
        for piece in _PIECE.findall(text)
    )


def _is_mixed(part: str) -> bool:
    """Return whether a part of a text looks random: it contains letters and digits, or often changes between upper and
    lower case.
    """
    if any(each.isdigit() for each in part):
        return any(each.isalpha() for each in part)
    changes = sum(character.isupper() != following.isupper() for character, following in itertools.pairwise(part))
    return changes > _CASE_CHANGES_MIN * len(part)


def plaintext_arguments(args: tuple[str, ...]) -> tuple[tuple[int, str], ...]:
    """Return the index and the name of every argument that contains a credential in clear text.

    Examples are `--api-key X`, `--api-key=X`, `-H "Authorization: X"` and a DSN.
    """
    arguments: list[tuple[int, str]] = []
    flag = ""
    for index, text in enumerate(args):
        name = flag
        if flag and not text.startswith("-") and is_plaintext(flag, text):
            # The whole argument is the value, even if it contains = or a colon.
            secret = True
        elif assigned := _ASSIGNED.fullmatch(text):
            name = assigned["name"].lstrip("-")
            secret = is_plaintext(name, assigned["value"]) or holds_token(text)
        elif header := _HEADER.fullmatch(text):
            name = header["name"]
            secret = is_plaintext(name, header["value"])
        elif text.startswith("-"):
            secret = holds_token(text)
        else:
            secret = is_plaintext(flag, text)
        if secret:
            arguments.append((index, name))
        flag = text.lstrip("-") if text.startswith("-") and "=" not in text else ""
    return tuple(arguments)
