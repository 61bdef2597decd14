"""The texts of one foreign entry, translated: placeholders are filled in or renamed, secrets become placeholders.

A text in env, headers, query or args may hold ${secrets.NAME}. A text that decides what is started (a program, a
folder, an address) may not: a variable in it is replaced by its present value, or the entry is refused.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

import msgspec

from interlock.drivers.protocol.files.plaintext import (
    attached_value,
    holds_token,
    is_plaintext,
    looks_random,
    may_be_secret,
    names_password,
    names_secret,
    short_flag_may_be_secret,
)
from interlock.interop.protocol.model import ImportNote, ServerEntry
from interlock.interop.protocol.secret_names import Part, Placeholder, SecretNames, place_name, split_parts

# Placeholders of other programs inside a text: what each asks for (AIP-import-7).
#
# `split_parts` cuts a text into literals and `Placeholder`s. What becomes of one depends on where the text stands: see
# `draft`.


# The secrets of one driver while it is drafted: each gets a name, a slug and a place; values go no further.


_SCHEME: Final = re.compile(r"(?P<scheme>(?:Bearer|Basic|Token|ApiKey|Digest)\s+)(?P<value>\S.*)", re.I | re.DOTALL)
_ASSIGNED: Final = re.compile(r"(?P<head>(?P<name>-{0,2}[A-Za-z][\w-]{0,100})=)(?P<value>.*)", re.DOTALL)
_HEADER: Final = re.compile(r"(?P<head>\s*(?P<name>[A-Za-z][A-Za-z0-9-]{1,60}):(?!//|\\)\s*)(?P<value>\S.*)", re.DOTALL)
_USERINFO: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<pair>[^/@\s]+)@")
_ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DOTENV: Final = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """Environment that an entry may refer to.

    `folder` is where a bundle was unpacked. `env_files` are texts by the path as written. `fresh` are paths that do not
    exist yet, each with the folder in which it would be created. `writes` are folders that the user opens for writing.
    """

    home: str
    workspace: str
    env: Mapping[str, str] = {}
    folder: str | None = None
    env_files: Mapping[str, str] = {}
    fresh: Mapping[str, str] = {}
    writes: tuple[str, ...] = ()


class NotTranslatable(Exception):
    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Translator:
    def __init__(
        self, entry: ServerEntry, around: Surroundings, secrets: SecretNames, not_secret: frozenset[str]
    ) -> None:
        self._entry = entry
        self._around = around
        self._not_secret = not_secret
        self.secrets = secrets
        self.notes: list[ImportNote] = []
        self.spared: set[str] = set()  # names that --not-secret let pass
        self.hands_on = True  # the sandbox can pass variables of the host
        self.environment_passed: list[str] = []
        self.environment_defaults: dict[str, str] = {}

    def say(self, code: str, text: str) -> None:
        self.notes.append(ImportNote(code=code, text=text))

    # Where no placeholder of ours may stand

    def fixed(self, text: str, place: str) -> str:
        pieces: list[str] = []
        for part in self._parts(text):
            if isinstance(part, str):
                pieces.append(part)
                continue
            value = self._value_now(part)
            if value is None:
                raise NotTranslatable(
                    "variable_unset", f"{place} needs {part.name or 'a value'}, which is not known here"
                )
            if names_secret(part.name) or holds_token(value):
                raise NotTranslatable(
                    "secret_in_place", f"{place} would hold a secret; it can stand in env, headers and args"
                )
            self.say("variable_filled", f"{place} holds what {part.name} is now")
            pieces.append(value)
        whole = "".join(pieces)
        if holds_token(whole):
            raise NotTranslatable("secret_in_place", f"{place} holds a secret; it can stand in env, headers and args")
        return whole

    def _value_now(self, ref: Placeholder) -> str | None:
        if ref.kind == "env":
            return self._around.env.get(ref.name, ref.default)
        if ref.kind == "input" and (person_input := self._entry.inputs.get(ref.name)) is not None:
            return None if person_input.secret else person_input.default
        return None

    def _parts(self, text: str) -> list[Part]:
        """Split a text into parts, with folders in place of their placeholders and neighbouring literals joined."""
        parts: list[Part] = []
        for part in split_parts(text, self._entry.style):
            resolved = part if isinstance(part, str) else self._known_part(part)
            if isinstance(resolved, str) and parts and isinstance(parts[-1], str):
                parts[-1] += resolved
            else:
                parts.append(resolved)
        return parts

    def _known_part(self, ref: Placeholder) -> Part:
        match ref.kind:
            case "input" if self._entry.style == "registry" and ref.name not in self._entry.inputs:
                return f"{{{ref.name}}}"  # a registry's unknown {curly} part is text
            case "home":
                return f"{self._around.home}/{ref.name}" if ref.name else self._around.home
            case "workspace":
                return self._entry.project or self._around.workspace
            case "folder" if self._around.folder is not None:
                return self._around.folder
            case "unknown" | "folder":
                raise NotTranslatable("placeholder_unknown", "it holds a placeholder whose meaning is not known here")
        return ref

    # Where one may

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        variables: dict[str, str] = {}
        for name, text in env.items():
            if not _ENVIRONMENT_NAME.fullmatch(name):
                self.say("name_invalid", "a variable with an odd name is left out")
                continue
            parts = self._parts(text)
            if len(parts) == 1 and isinstance(ref := parts[0], Placeholder) and ref.kind == "env":
                placeholder = self._variable(name, ref)
                if placeholder is not None:
                    variables[name] = placeholder
                continue
            variables[name] = self._text(place_name("env", name), name, parts)
        return variables

    def _variable(self, name: str, ref: Placeholder) -> str | None:
        """Translate NAME=${VAR}: return the placeholder of a secret, or None if the variable is passed on unchanged."""
        secret = self._is_declared(name) or names_secret(name) or names_secret(ref.name)
        if secret and not {name, ref.name} & self._not_secret:
            return self.secrets.from_environment(place_name("env", name), name, ref.name)
        if ref.name != name or not self.hands_on:
            # Nothing but a secret can be given under another name, or into a container.
            return self.secrets.from_environment(place_name("env", name), name, ref.name)
        self.environment_passed.append(name)
        if ref.default:
            if may_be_secret(name, ref.default):
                self.say(
                    "default_dropped", f"the default of {place_name('env', name)} looks like a secret and is left out"
                )
            else:
                self.environment_defaults[name] = ref.default
        return None

    def passed(self, name: str) -> str | None:
        """Translate a variable that is passed on under the same name. Return its placeholder, if it is a secret, or
        None.
        """
        return self._variable(name, Placeholder(kind="env", name=name)) if _ENVIRONMENT_NAME.fullmatch(name) else None

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: self._header_value(place_name("headers", name), name, text) for name, text in headers.items()}

    def _header_value(self, place: str, name: str, text: str) -> str:
        """Translate a header value and keep the scheme of an Authorization header readable: Bearer ${secrets.X}."""
        scheme = _SCHEME.fullmatch(text)
        if scheme is None:
            return self._text(place, name, self._parts(text))
        return scheme["scheme"] + self._text(place, name, self._parts(scheme["value"]))

    def arguments(self, args: tuple[str, ...]) -> list[str]:
        translated: list[str] = []
        flag = ""
        for text in args:
            whole = text.startswith("/") or (not text.startswith("-") and is_plaintext(flag, text))
            cut = None if whole else _ASSIGNED.fullmatch(text) or _HEADER.fullmatch(text)
            if cut is not None:
                name = cut["name"].lstrip("-")
                value = cut["value"]
                # `-H "Authorization: x"` and `--header=Authorization: x`
                inner = _HEADER.fullmatch(value)
                head = cut["head"] + (inner["head"] if inner else "")
                name, value = (inner["name"], inner["value"]) if inner else (name, value)
                if text.startswith("-") and short_flag_may_be_secret(name, value):
                    translated.append(head + self._text(f"args -{name}", name, self._parts(value), doubted=True))
                else:
                    translated.append(head + self._header_value(f"args {_flag(name)}", name, value))
            elif (value := attached_value(text) or "") and not holds_token(text):
                translated.append("-p" + self._text("args -p", "p", self._parts(value), doubted=True))
            elif text.startswith("-") and not holds_token(text):
                translated.append(self._text("args", "", self._parts(text)))
            else:
                named = flag or _scheme_name(text)
                doubted = short_flag_may_be_secret(flag, text)
                place = f"args {_flag(flag)}".rstrip()
                translated.append(self._text(place, named, self._parts(text), by_name=bool(flag), doubted=doubted))
            flag = text.lstrip("-") if text.startswith("-") and "=" not in text else ""
        return translated

    def address(self, url: str) -> tuple[str, dict[str, str], dict[str, str]]:
        """Return the url without its secrets, the query to add, and headers that replace user and password."""
        head, mark, tail = url.partition("?")
        tail = tail.partition("#")[0]
        head = head.partition("#")[0]
        headers: dict[str, str] = {}
        if (credentials := _USERINFO.match(head)) is not None:
            if len(self._parts(credentials["pair"])) != 1 or "$" in credentials["pair"]:
                raise NotTranslatable("secret_in_place", "the user and password of its url hold a placeholder")
            user, _, password = credentials["pair"].partition(":")
            value = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
            placeholder = self.secrets.keep("url user and password", "URL_CREDENTIALS", "User and password.", value)
            headers["Authorization"] = f"Basic {placeholder}"
            head = credentials["scheme"] + head[credentials.end() :]
        address = self._plain_address(self.fixed(head, "url"))
        if looks_random(address.path) and "url" not in self._not_secret:
            raise NotTranslatable(
                "secret_in_url",
                "the path of its url looks like a secret, and a path cannot be kept in the store; if it is none, add "
                "--not-secret url",
            )
        plain_query, query = self._query(tail) if mark else ("", {})
        return urlunsplit(address._replace(query=plain_query)), query, headers

    def _plain_address(self, text: str) -> SplitResult:
        try:
            address = urlsplit(text)
            address.port  # noqa: B018  # read for its check
        except ValueError:
            raise NotTranslatable("url_invalid", "its url cannot be read") from None
        return address

    def _query(self, query: str) -> tuple[str, dict[str, str]]:
        """Return the part of a query that stays in the url, and the part that becomes server.query."""
        remaining: list[str] = []
        moved: dict[str, str] = {}
        for pair in query.split("&"):
            key, _, value = pair.partition("=")
            name, plain = unquote_plus(key), unquote_plus(value)
            text = self._text(f"url ?{name}", name, self._parts(plain))
            if text != plain:
                moved[name] = text
            elif pair:
                remaining.append(pair)
        return "&".join(remaining), moved

    def oauth(self) -> dict[str, Any]:
        auth = dict(self._entry.auth or {})
        if auth and self._entry.client_secret is not None:
            parts = self._parts(self._entry.client_secret)
            if len(parts) == 1 and isinstance(parts[0], Placeholder):
                placeholder = self._reference("auth", "CLIENT_SECRET", parts[0])
            else:
                text = "".join(part for part in parts if isinstance(part, str))
                placeholder = self.secrets.keep("auth client secret", "CLIENT_SECRET", "The OAuth client's.", text)
            auth["secret"] = placeholder.removeprefix("${secrets.").removesuffix("}")
        return auth

    def from_file(self) -> dict[str, str]:
        """Return the variables that an envFile sets."""
        path = self._entry.env_file
        if path is None:
            return {}
        text = self._around.env_files.get(path)
        if text is None:
            self.say("env_file_unread", "its envFile cannot be read; what it sets is missing")
            return {}
        variables = {}
        for line in text.splitlines():
            if (setting := _DOTENV.fullmatch(line)) is not None:
                value = setting["value"].strip()
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                variables[setting["name"]] = value[1:-1] if quoted else value.partition(" #")[0].rstrip()
        return variables

    def _text(self, place: str, name: str, parts: list[Part], *, by_name: bool = True, doubted: bool = False) -> str:
        """Return a text with placeholders for its secrets.

        `name` is the name in the source, which may suggest a secret. `doubted` means that its flag suggests one.
        """
        spared = name in self._not_secret
        if all(isinstance(part, str) for part in parts):
            text = "".join(part for part in parts if isinstance(part, str))
            secret = doubted or self._is_declared(name) or may_be_secret(name if by_name else "", text)
            if not secret or not text:
                return text
            if spared:
                self.spared.add(name)
                return text
            return self.secrets.keep(place, name or "ARGUMENT", f"{place} of {self._entry.name}.", text)
        if names_password(name) and not spared and any(isinstance(part, str) and part.strip() for part in parts):
            raise NotTranslatable(
                "secret_in_place", f"{place} mixes a secret with a placeholder; write the one or the other"
            )
        filled = [part if isinstance(part, str) else self._reference(place, name, part) for part in parts]
        if any(isinstance(part, str) and (holds_token(part) or looks_random(part)) for part in parts):
            raise NotTranslatable(
                "secret_in_place", f"{place} mixes a secret with a placeholder; write the one or the other"
            )
        return "".join(filled)

    def _reference(self, place: str, name: str, ref: Placeholder) -> str:
        if ref.kind == "input":
            person_input = self._entry.inputs.get(ref.name)
            described = (
                person_input.description
                if person_input is not None and not holds_token(person_input.description)
                else ""
            )
            if (
                person_input is not None
                and not person_input.secret
                and person_input.default is not None
                and self._entry.style != "common"
            ):
                return person_input.default  # of a package; what a client asks its person for is asked here too
            return self.secrets.ask(place, ref.name, described or f"{ref.name} of {self._entry.name}.")
        if ref.default is not None and ref.name not in self._around.env:
            if names_secret(ref.name) or may_be_secret(name, ref.default):
                return self.secrets.keep(place, ref.name, f"The default of {ref.name}.", ref.default)
            return ref.default
        return self.secrets.from_environment(place, ref.name, ref.name)

    def _is_declared(self, name: str) -> bool:
        return name in self._entry.secrets


def _flag(name: str) -> str:
    return f"{'-' if len(name) == 1 else '--'}{name}" if re.fullmatch(r"[\w-]{1,40}", name, re.ASCII) else ""


def _scheme_name(text: str) -> str:
    """Return a name for an address that is a positional argument, such as POSTGRESQL_URL, or an empty string."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+]{1,20})(?:[+.-][\w.+-]*)?://", text)
    return f"{match[1]}_URL" if match else ""
