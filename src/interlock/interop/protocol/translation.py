"""Texts of foreign files and of driver files: what a placeholder means, and what becomes of a secret.

`split_parts` finds the placeholders of other programs in a text (AIP-import-7). `Translator` translates the texts of an
entry: a text in env, headers, query or args may hold ${secrets.NAME}; a text that decides what is started (a program, a
folder, an address) may not, so a variable in it is replaced by its present value, or the entry is refused.

`SecretNames` gives each secret of a driver a name, a slug and a place. The value of a secret leaves this module only in
`SecretFinding.value`. `extract_secrets` replaces the credentials that a DRIVER.md holds in clear text by placeholders
(AIP-19.plain-2). A credential where no placeholder is allowed, such as in a url, is named and left: only a person can
move it.
"""

import base64
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote, unquote_plus, urlsplit, urlunsplit

import msgspec

from interlock.drivers.protocol.files.plaintext import (
    attached_value,
    holds_token,
    is_plaintext,
    looks_random,
    may_be_secret,
    names_password,
    names_secret,
    plaintext_arguments,
    short_flag_may_be_secret,
)
from interlock.interop.protocol.model import ImportNote, PersonInput, SecretFinding, ServerEntry, Style
from interlock.wire.jsontext.canonical import quoted

Kind = Literal["env", "input", "home", "workspace", "folder", "unknown"]
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_BRACED: Final = r"\$\{(?P<braced>[^{}]{1,300})\}"
_FORMS: Final[dict[Style, re.Pattern[str]]] = {
    "common": re.compile(_BRACED),
    "gemini": re.compile(rf"{_BRACED}|\$(?P<bare>{_NAME})"),
    "opencode": re.compile(rf"{_BRACED}|\{{(?P<curly>(?:env|file):[^{{}}]{{1,300}})\}}"),
    "continue": re.compile(rf"\$\{{\{{(?P<double>[^{{}}]{{1,300}})\}}\}}|{_BRACED}"),
    "registry": re.compile(r"\{(?P<curly>[A-Za-z0-9_.-]{1,100})\}"),
    "bundle": re.compile(_BRACED),
    "docker": re.compile(r"\{\{(?P<template>[^{}]{1,300})\}\}"),
    "driver": re.compile(r"\$\{secrets\.(?P<ours>[A-Z][A-Z0-9_]*)\}", re.ASCII),
}
_VARIABLE: Final = re.compile(rf"(?:env:)?(?P<name>{_NAME})(?::-(?P<default>.*))?", re.DOTALL | re.ASCII)


class Placeholder(msgspec.Struct, frozen=True, kw_only=True):
    """A placeholder of another program: what it stands for, its name and its default."""

    kind: Kind
    name: str = ""
    default: str | None = None


Part = str | Placeholder


def split_parts(text: str, style: Style) -> list[Part]:
    """Split a text into literal texts and placeholders. `style` says in which notation the placeholders are written."""
    parts: list[Part] = []
    end = 0
    for match in _FORMS[style].finditer(text):
        parts += [text[end : match.start()], _read_placeholder(match, style)]
        end = match.end()
    parts.append(text[end:])
    return [each for each in parts if each != ""]


_HOME: Final = Placeholder(kind="home")
_FIXED: Final[Mapping[str, Part]] = {
    "workspaceFolder": Placeholder(kind="workspace"),
    "workspaceRoot": Placeholder(kind="workspace"),
    "userHome": _HOME,
    **{"pathSeparator": "/", "/": "/"},
}
_FIXED_OF_BUNDLES: Final[Mapping[str, Part]] = {
    "__dirname": Placeholder(kind="folder"),
    "HOME": _HOME,
    **{name.upper(): Placeholder(kind="home", name=name) for name in ("Desktop", "Documents", "Downloads")},
    **{"pathSeparator": "/", "/": "/"},
}


def _read_placeholder(match: re.Match[str], style: Style) -> Part:
    groups = match.groupdict()
    body = next(value for value in groups.values() if value is not None)
    if groups.get("bare") is not None:
        return Placeholder(kind="env", name=body)
    if style in {"registry", "driver"}:
        return Placeholder(kind="input", name=body)
    if style == "docker":  # {{server.parameter|volume|into}}
        return Placeholder(kind="input", name=body.partition("|")[0].strip())
    if groups.get("double") is not None:  # ${{ secrets.NAME }}, ${{ inputs.NAME }}
        place, dot, name = body.strip().partition(".")
        if dot and place in {"secrets", "inputs"}:
            return Placeholder(kind="input", name=name)
        return Placeholder(kind="unknown", name=body.strip())
    is_bundle = style == "bundle"
    fixed, prefix = (_FIXED_OF_BUNDLES, "user_config.") if is_bundle else (_FIXED, "input:")
    if body in fixed:
        return fixed[body]
    if body.startswith(prefix):
        return Placeholder(kind="input", name=body.removeprefix(prefix))
    variable = _VARIABLE.fullmatch(body)
    if variable is None:
        return Placeholder(kind="unknown", name=body)
    if not is_bundle and variable["name"] in {"HOME", "USERPROFILE"}:
        return _HOME  # a server's own HOME is a private folder, and this means the person's
    return Placeholder(kind="env", name=variable["name"], default=None if is_bundle else variable["default"])


_NOT_NAME: Final = re.compile(r"[^A-Z0-9]+")
NAME_CHARS_MAX: Final = 30
DESCRIPTION_CHARS_MAX: Final = 300


class SecretNames:
    """The secrets of one driver while its draft is made. Each secret gets a unique name."""

    def __init__(self, driver_id: str) -> None:
        self._namespace = driver_id.replace(".", "-")
        self.found: list[SecretFinding] = []

    def add(
        self, place: str, wanted: str, description: str = "", *, value: str | None = None, variable: str | None = None
    ) -> str:
        """Return the placeholder of a secret, such as ${secrets.API_KEY}. Its name is derived from `wanted`.

        Its value is `value`, which goes to the store, or that of a variable of the environment. If there is neither,
        the user is asked for it. Equal values share one secret, and so do equal variables and equal questions.
        """
        backend = None if variable is None else f"env://{variable}"
        if variable is not None:
            description = f"The environment variable {variable}, for {place}."
        name = base = secret_name(wanted)
        is_asked = value is None and backend is None
        for each in self.found:
            if (each.value, each.backend) == (value, backend) and (each.name == name or not is_asked):
                return f"${{secrets.{each.name}}}"
        number = 2
        taken = {each.name for each in self.found}
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        finding = SecretFinding(
            place=place,
            name=name,
            slug=f"{self._namespace}/{name.lower().replace('_', '-')}",
            description=description[:DESCRIPTION_CHARS_MAX] or f"For {place}.",
            value=value,
            backend=backend,
        )
        self.found.append(finding)
        return f"${{secrets.{name}}}"


def secret_name(wanted: str) -> str:
    """Return a valid secret name (AIP-19): capitals, digits and single underscores, two characters or more."""
    name = _NOT_NAME.sub("_", wanted.upper()).strip("_")[:NAME_CHARS_MAX].strip("_")
    if not name or not name[0].isalpha():
        name = f"VALUE_{name}".strip("_")
    return name if len(name) > 1 else f"{name}_VALUE"


def place_name(place: str, key: str) -> str:
    """Return the name of a setting in a server block, such as env.GITHUB_TOKEN. A key with unusual characters is
    quoted.
    """
    return f"{place}.{key}" if re.fullmatch(r"[\w.-]{1,60}", key, re.ASCII) else f"{place}.{quoted(key)}"


_SCHEME: Final = re.compile(r"(?P<scheme>(?:Bearer|Basic|Token|ApiKey|Digest)\s+)(?P<value>\S.*)", re.I | re.DOTALL)
_ASSIGNED: Final = re.compile(r"(?P<head>(?P<name>-{0,2}[A-Za-z][\w-]{0,100})=)(?P<value>.*)", re.DOTALL)
_HEADER: Final = re.compile(r"(?P<head>\s*(?P<name>[A-Za-z][A-Za-z0-9-]{1,60}):(?!//|\\)\s*)(?P<value>\S.*)", re.DOTALL)
_USERINFO: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,20}://)(?P<pair>[^/@\s]+)@")
_ENVIRONMENT_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_DOTENV: Final = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_]\w*)\s*=\s*(?P<value>.*)", re.ASCII)


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about the machine that an entry may refer to, such as the home folder and environment variables.

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
    """Error for an entry that cannot become a driver. `code` is for programs, the text for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Translator:
    """Translator of one server entry from the configuration file of another MCP client to Interlock's own form. It
    collects notes for the user in `notes`, and secrets in `secrets`.
    """

    entry: ServerEntry
    around: Surroundings
    secrets: SecretNames
    not_secret: frozenset[str]
    notes: list[ImportNote] = field(default_factory=list)
    spared: set[str] = field(default_factory=set)  # names that --not-secret let pass
    hands_on: bool = True  # the sandbox can pass variables of the host
    environment_passed: list[str] = field(default_factory=list)
    environment_defaults: dict[str, str] = field(default_factory=dict)

    def say(self, code: str, text: str) -> None:
        self.notes.append(ImportNote(code=code, text=text))

    # Texts in which no placeholder of ours is allowed

    def fixed(self, text: str, place: str) -> str:
        """Return a text in which each placeholder of an environment variable is replaced by the variable's value on
        this machine.

        Raise NotTranslatable if a value is not known here, or if the text would contain a secret.
        """
        pieces: list[str] = []
        for part in self._parts(text):
            if isinstance(part, str):
                pieces.append(part)
                continue
            value: str | None = None
            if part.kind == "env":
                value = self.around.env.get(part.name, part.default)
            elif part.kind == "input" and not (person_input := self.entry.inputs.get(part.name, PersonInput())).secret:
                value = person_input.default
            if value is None:
                message = f"{place} needs {part.name or 'a value'}, which is not known here"
                raise NotTranslatable("variable_unset", message)
            if names_secret(part.name) or holds_token(value):
                message = f"{place} would hold a secret; it is allowed in env, headers and args"
                raise NotTranslatable("secret_in_place", message)
            self.say("variable_filled", f"{place} holds what {part.name} is now")
            pieces.append(value)
        whole = "".join(pieces)
        if holds_token(whole):
            raise NotTranslatable("secret_in_place", f"{place} holds a secret; it is allowed in env, headers and args")
        return whole

    def _parts(self, text: str) -> list[Part]:
        """Split a text into literal texts and placeholders. A placeholder for a folder is replaced by the path, and
        neighbouring literal texts are joined.
        """
        parts: list[Part] = []
        for part in split_parts(text, self.entry.style):
            resolved = part if isinstance(part, str) else self._known_part(part)
            if isinstance(resolved, str) and parts and isinstance(parts[-1], str):
                parts[-1] += resolved
            else:
                parts.append(resolved)
        return parts

    def _known_part(self, ref: Placeholder) -> Part:
        match ref.kind:
            case "input" if self.entry.style == "registry" and ref.name not in self.entry.inputs:
                return f"{{{ref.name}}}"  # a registry's unknown {curly} part is text
            case "home":
                return f"{self.around.home}/{ref.name}" if ref.name else self.around.home
            case "workspace":
                return self.entry.project or self.around.workspace
            case "folder" if self.around.folder is not None:
                return self.around.folder
            case "unknown" | "folder":
                raise NotTranslatable("placeholder_unknown", "it holds a placeholder whose meaning is not known here")
        return ref

    # Texts in which placeholders of ours are allowed

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that the driver sets. Variables that the sandbox passes on from the host are
        collected in `environment_passed` instead.
        """
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
        """Translate an environment variable written as NAME=${VAR}. Return the placeholder of a secret, or None if the
        sandbox passes the variable on unchanged.
        """
        secret = name in self.entry.secrets or names_secret(name) or names_secret(ref.name)
        if secret and not {name, ref.name} & self.not_secret:
            return self.secrets.add(place_name("env", name), name, variable=ref.name)
        if ref.name != name or not self.hands_on:
            # Nothing but a secret can be given under another name, or into a container.
            return self.secrets.add(place_name("env", name), name, variable=ref.name)
        self.environment_passed.append(name)
        if ref.default:
            if may_be_secret(name, ref.default):
                place = place_name("env", name)
                self.say("default_dropped", f"the default of {place} looks like a secret and is left out")
            else:
                self.environment_defaults[name] = ref.default
        return None

    def passed(self, name: str) -> str | None:
        """Translate an environment variable that the server gets under the same name as the client. Return a
        placeholder if it is a secret or the sandbox cannot pass it on. Return None if the sandbox passes it on.
        """
        return self._variable(name, Placeholder(kind="env", name=name)) if _ENVIRONMENT_NAME.fullmatch(name) else None

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: self._header_value(place_name("headers", name), name, text) for name, text in headers.items()}

    def _header_value(self, place: str, name: str, text: str) -> str:
        """Translate the value of a header. A scheme such as Bearer stays in front of the placeholder: Bearer
        ${secrets.X}.
        """
        scheme = _SCHEME.fullmatch(text)
        if scheme is None:
            return self._text(place, name, self._parts(text))
        return scheme["scheme"] + self._text(place, name, self._parts(scheme["value"]))

    def arguments(self, args: tuple[str, ...]) -> list[str]:
        """Return the command-line arguments with placeholders in place of secrets. The flag before a value, or the
        value itself, shows whether it is a secret.
        """
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
                address = re.match(r"([A-Za-z][A-Za-z0-9+]{1,20})(?:[+.-][\w.+-]*)?://", text)
                # An address as a positional argument is named after its scheme: POSTGRESQL_URL.
                named = flag or (f"{address[1]}_URL" if address else "")
                doubted = short_flag_may_be_secret(flag, text)
                place = f"args {_flag(flag)}".rstrip()
                translated.append(self._text(place, named, self._parts(text), by_name=bool(flag), doubted=doubted))
            flag = text.lstrip("-") if text.startswith("-") and "=" not in text else ""
        return translated

    def address(self, url: str) -> tuple[str, dict[str, str], dict[str, str]]:
        """Split a url into the url without its secrets, the query parameters that hold secrets, and the headers that
        replace a user and password.

        Raise NotTranslatable if the url is invalid or has a secret in another part.
        """
        head, mark, tail = url.partition("?")
        tail = tail.partition("#")[0]
        head = head.partition("#")[0]
        headers: dict[str, str] = {}
        if (credentials := _USERINFO.match(head)) is not None:
            if len(self._parts(credentials["pair"])) != 1 or "$" in credentials["pair"]:
                raise NotTranslatable("secret_in_place", "the user and password of its url hold a placeholder")
            user, _, password = credentials["pair"].partition(":")
            value = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
            place, name = "url user and password", "URL_CREDENTIALS"
            placeholder = self.secrets.add(place, name, "User and password.", value=value)
            headers["Authorization"] = f"Basic {placeholder}"
            head = credentials["scheme"] + head[credentials.end() :]
        try:
            address = urlsplit(self.fixed(head, "url"))
            address.port  # noqa: B018  # read for its check
        except ValueError:
            raise NotTranslatable("url_invalid", "its url cannot be read") from None
        if looks_random(address.path) and "url" not in self.not_secret:
            message = "the path of its url looks like a secret, and a path cannot be kept in the store"
            raise NotTranslatable("secret_in_url", f"{message}; if it is none, add --not-secret url")
        remaining: list[str] = []  # what stays in the url; the rest becomes server.query
        query: dict[str, str] = {}
        for pair in tail.split("&") if mark else ():
            key, _, value = pair.partition("=")
            name, plain = unquote_plus(key), unquote_plus(value)
            text = self._text(f"url ?{name}", name, self._parts(plain))
            if text != plain:
                query[name] = text
            elif pair:
                remaining.append(pair)
        return urlunsplit(address._replace(query="&".join(remaining))), query, headers

    def oauth(self) -> dict[str, Any]:
        """Return the block server.auth, in which the name of a stored secret replaces the OAuth client secret."""
        auth = dict(self.entry.auth or {})
        if auth and self.entry.client_secret is not None:
            parts = self._parts(self.entry.client_secret)
            if len(parts) == 1 and isinstance(parts[0], Placeholder):
                placeholder = self._reference("auth", "CLIENT_SECRET", parts[0])
            else:
                text = "".join(part for part in parts if isinstance(part, str))
                placeholder = self.secrets.add("auth client secret", "CLIENT_SECRET", "The OAuth client's.", value=text)
            auth["secret"] = placeholder.removeprefix("${secrets.").removesuffix("}")
        return auth

    def from_file(self) -> dict[str, str]:
        """Return the variables in the file that the entry names as its envFile."""
        path = self.entry.env_file
        if path is None:
            return {}
        text = self.around.env_files.get(path)
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
        """Return a text in which placeholders such as ${secrets.NAME} replace the secrets.

        `name` is the name in the source, which may suggest a secret. `doubted` means that its flag suggests one.
        Raise NotTranslatable if the text mixes a secret with a placeholder.
        """
        spared = name in self.not_secret
        if all(isinstance(part, str) for part in parts):
            text = "".join(part for part in parts if isinstance(part, str))
            secret = doubted or name in self.entry.secrets or may_be_secret(name if by_name else "", text)
            if not secret or not text:
                return text
            if spared:
                self.spared.add(name)
                return text
            return self.secrets.add(place, name or "ARGUMENT", f"{place} of {self.entry.name}.", value=text)
        literals = [part for part in parts if isinstance(part, str)]
        is_password = names_password(name) and not spared and any(part.strip() for part in literals)
        if is_password or any(holds_token(part) or looks_random(part) for part in literals):
            message = f"{place} mixes a secret with a placeholder; write the one or the other"
            raise NotTranslatable("secret_in_place", message)
        return "".join(part if isinstance(part, str) else self._reference(place, name, part) for part in parts)

    def _reference(self, place: str, name: str, ref: Placeholder) -> str:
        if ref.kind == "input":
            person_input = self.entry.inputs.get(ref.name, PersonInput())
            if not person_input.secret and person_input.default is not None and self.entry.style != "common":
                return person_input.default  # of a package; what a client asks its person for is asked here too
            described = "" if holds_token(person_input.description) else person_input.description
            return self.secrets.add(place, ref.name, described or f"{ref.name} of {self.entry.name}.")
        if ref.default is not None and ref.name not in self.around.env:
            if names_secret(ref.name) or may_be_secret(name, ref.default):
                return self.secrets.add(place, ref.name, f"The default of {ref.name}.", value=ref.default)
            return ref.default
        return self.secrets.add(place, ref.name, variable=ref.name)


def _flag(name: str) -> str:
    return f"{'-' if len(name) == 1 else '--'}{name}" if re.fullmatch(r"[\w-]{1,40}", name, re.ASCII) else ""


REF: Final = "./SECRETS.md"
_AUTHORIZATION_SCHEMES: Final = ("bearer ", "basic ", "token ")
_WITHOUT_PLACEHOLDERS: Final = ("path", "package", "image", "url", "version", "entry", "cwd")


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A driver without plaintext secrets, and the secrets that were removed from it."""

    data: Mapping[str, Any]
    changed: tuple[str, ...]  # pointers
    secrets: tuple[SecretFinding, ...]
    left: tuple[str, ...] = ()  # places a person has to see to

    def __repr__(self) -> str:
        return f"Adopted({len(self.secrets)} secrets)"


def extract_secrets(data: Mapping[str, Any], driver_id: str, taken: Collection[str] = ()) -> Adopted:
    """Replace the plaintext secrets of a driver by placeholders. `taken` are names of other existing secrets."""
    copy = plain_copy(data)
    server = copy.get("server")
    if not isinstance(server, dict):
        return Adopted(data=data, changed=(), secrets=())
    names = SecretNames(driver_id)
    names.found += [SecretFinding(place="", name=name, slug="", description="") for name in taken]
    changed: dict[str, None] = {}

    def extract(place: str, name: str, text: str, pointer: str) -> str:
        """Return the placeholder of a secret. A scheme such as "Bearer" stays in front of it."""
        changed[pointer] = None
        scheme = next((text[: len(each)] for each in _AUTHORIZATION_SCHEMES if text.lower().startswith(each)), "")
        return scheme + names.add(place, name, f"For server.{place} of the driver.", value=text[len(scheme) :])

    metadata = copy.get("metadata")
    interlock = metadata.get("interlock") if isinstance(metadata, Mapping) else None
    listed = interlock.get("not_secret") if isinstance(interlock, Mapping) else None
    not_secret = [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    for key in ("env", "headers", "query"):
        table = server.get(key)
        if not isinstance(table, dict):
            continue
        for name, text in table.items():
            if isinstance(text, str) and name not in not_secret and is_plaintext(name, text):
                table[name] = extract(place_name(key, name), name, text, f"/server/{key}")
    _extract_from_arguments(server, not_secret, extract)
    fixed_texts = {key: server[key] for key in _WITHOUT_PLACEHOLDERS if isinstance(server.get(key), str)}
    left = [key for key, text in fixed_texts.items() if key not in not_secret and is_plaintext("", text)]
    secrets = tuple(names.found[len(taken) :])
    auth = copy.setdefault("auth", {}) if secrets else None
    if isinstance(auth, dict) and "ref" not in auth:
        auth["ref"] = REF
        changed["/auth"] = None
    return Adopted(data=copy, changed=tuple(changed), secrets=secrets, left=tuple(f"server.{key}" for key in left))


def _extract_from_arguments(
    server: dict[str, Any], not_secret: Collection[str], extract: Callable[[str, str, str, str], str]
) -> None:
    args = server.get("args")
    if not isinstance(args, list) or not all(isinstance(each, str) for each in args):
        return
    for index, name in plaintext_arguments(tuple(args)):
        if name in not_secret or f"--{name}" in not_secret:
            continue
        text: str = args[index]
        for mark in ("=", ":"):
            before, separator, value = text.partition(mark)
            if separator and before.lstrip("-") == name:
                blank = value[: len(value) - len(value.lstrip())]
                placeholder = extract(place_name("args", name), name, value.lstrip(), "/server/args")
                args[index] = before + mark + blank + placeholder
                break
        else:
            args[index] = extract(place_name("args", name or str(index)), name or "ARGUMENT", text, "/server/args")


def plain_copy(value: Any) -> Any:
    """Return a deep copy of data. All mappings in the copy are dicts, so that they can be changed."""
    if isinstance(value, Mapping):
        return {key: plain_copy(each) for key, each in value.items()}
    return [plain_copy(each) for each in value] if isinstance(value, list) else value
