"""Uses of stored secrets: which link of a plan gets which secret, and where the secret goes with it.

A stored secret may not be sent to any host that somebody writes into a file. Each use has to be confirmed by a person:
it was in the first configuration of the node, an approver signed it, or the person who stored the secret named the
destination (`interlock secrets set NAME --for SEGMENT|HOST`). `Plan.withheld_secrets` holds the uses that are not
confirmed, and `SECRETS` computes them from what is stored (`config.loosening`).

A use names its destination: the origin of a server, the broker of a device, or the program that is started. Another
destination under the same segment is another use. Secrets of drivers are bound to their drivers, and are not here.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from interlock.config.order import Order, fingerprint
from interlock.config.plan_servers import Dial, ServerPlan
from interlock.config.plan_tree import DevicePlan
from interlock.config.value_types import SECRET_REFERENCE, secret_slug
from interlock.devices.protocol.description import LinkDescription

if TYPE_CHECKING:
    from interlock.config.plan import Plan

PROGRAM_CHARS_MAX: Final = 200  # of a command that is shown
CUT: Final = "..."  # at the end of what is shown of a longer one
PORTS: Final = {"https": 443, "http": 80, "nats": 4222, "tls": 4222}
STORE: Final = "[store]"  # in place of a segment, which has no brackets
# Where `interlock secrets set --for` stores what it was told: of each secret, the keys by the name that a person gave.
BINDINGS: Final = "secret-bindings"
Destinations = dict[str, list[str]]


class SecretUse(msgspec.Struct, frozen=True):
    """The use of a stored secret by a server, subserver, device or the store. `target` describes to people where the
    secret goes, and contains no secret.
    """

    secret: str
    segment: str
    target: str
    digest: str  # of all that decides where the secret goes
    hosts: tuple[str, ...] = ()  # HOST:PORT, all of which get it; empty: a program of this machine

    @property
    def key(self) -> str:
        """Return the key under which the node stores that this use is confirmed."""
        return binding_key(self.secret, f"{self.segment} {self.digest}")

    def is_confirmed(self, confirmed: Mapping[str, Any]) -> bool:
        """Return whether a person has confirmed this use, or has confirmed the secret for every host in it. `confirmed`
        has the keys of confirmed uses.
        """
        by_host = (
            binding_key(self.secret, host) in confirmed
            or binding_key(self.secret, host.rpartition(":")[0]) in confirmed
            for host in self.hosts
        )
        return self.key in confirmed or (bool(self.hosts) and all(by_host))

    @property
    def destinations(self) -> str:
        """Return the arguments for `--for` with which the command `interlock secrets set` confirms this use."""
        return " --for ".join(self.hosts if self.segment == STORE else (self.segment,))

    def __str__(self) -> str:
        return f"the secret {self.secret} for {self.segment}, {self.target}"


def read_bindings(stored: Iterable[bytes]) -> dict[str, None]:
    """Return the keys of all uses of secrets that people have confirmed. `stored` are the values of the bucket
    `BINDINGS`.
    """
    named = (msgspec.json.decode(value, type=Destinations) for value in stored)
    return {key: None for destinations in named for keys in destinations.values() for key in keys}


def binding_key(secret: str, destination: str) -> str:
    """Return the key under which the node stores that a secret may be sent to a destination."""
    return f"{secret} {destination}"


def referenced_secrets(server: ServerPlan) -> frozenset[str]:
    """Return the names of the secrets to which a server's configuration refers."""
    reach = server.reach
    if not isinstance(reach, Dial):
        return _slugs((*reach.command, *reach.env.values()))
    client_secret = reach.auth.client_secret if reach.auth is not None else None
    return _slugs((*reach.headers.values(), *reach.query.values(), client_secret or ""))


def _slugs(texts: Iterable[str]) -> frozenset[str]:
    return frozenset(secret_slug(reference[1]) for text in texts for reference in SECRET_REFERENCE.finditer(text))


def secret_uses(plan: "Plan") -> tuple[SecretUse, ...]:
    """Return the uses of stored secrets in a plan, by servers, children, devices and the store."""
    return (*_uses_of_servers(plan), *_uses_of_children(plan), *_uses_of_devices(plan), *_uses_of_store(plan))


def _uses_of_store(plan: "Plan") -> Iterator[SecretUse]:
    urls = plan.store.nats_url if plan.store.backend == "nats" else ()
    origins = tuple(_origin(url) for url in urls)
    for secret in sorted(_slugs((plan.store.nats_secret or "",)) if urls else ()):
        hosts = tuple(origin.rpartition("//")[2] for origin in origins)
        yield SecretUse(secret, STORE, " and ".join(origins), fingerprint(origins), hosts)


def _uses_of_servers(plan: "Plan") -> Iterator[SecretUse]:
    for server in plan.servers:
        for secret in sorted(referenced_secrets(server)):
            yield _use_of_server(server, secret)


def _use_of_server(server: ServerPlan, secret: str) -> SecretUse:
    reach = server.reach
    if isinstance(reach, Dial):
        issuer = reach.auth.issuer if reach.auth is not None else None
        origins = tuple(_origin(url) for url in (reach.url, issuer) if url is not None)
        hosts = tuple(origin.rpartition("//")[2] for origin in origins)
        return SecretUse(secret, server.segment, " and ".join(origins), fingerprint(origins), hosts)
    package = None if reach.package is None else f"{reach.package.registry}:{reach.package.name}"
    return _use_of_program(
        secret, server.segment, reach.command, reach.env, (package, reach.cwd, reach.serves), server.secrets
    )


def _use_of_program(
    secret: str,
    segment: str,
    command: tuple[str, ...],
    env: Mapping[str, str],
    more: tuple[Any, ...] = (),
    masked: tuple[str, ...] = (),
) -> SecretUse:
    """Describe the use of a secret by a program. The texts in `masked` come from the node's environment and are
    replaced in the result.
    """

    def mask(text: str) -> str:
        for value in sorted(masked, key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    words = tuple(mask(word) for word in command)
    digest = fingerprint((words, {name: mask(value) for name, value in env.items()}, *more))
    shown = " ".join((*(each for each in more[:1] if each), shlex.join(words)))
    if len(shown) > PROGRAM_CHARS_MAX:
        shown = f"{shown[:PROGRAM_CHARS_MAX]}{CUT}"
    return SecretUse(secret, segment, f"the program {shown}", digest)


def _uses_of_children(plan: "Plan") -> Iterator[SecretUse]:
    for child in plan.ax.children:
        for secret in sorted(_slugs(child.env.values())):
            yield _use_of_program(secret, child.segment, child.command, child.env)


def _uses_of_devices(plan: "Plan") -> Iterator[SecretUse]:
    for device in plan.devices.described:
        yield from device_uses(device)


def device_uses(device: DevicePlan) -> tuple[SecretUse, ...]:
    """Return the uses of stored secrets by a device."""
    link = device.description.link
    host, port, tls = link.broker
    secrets, digest = sorted(_slugs((link.password or "",))), fingerprint((link.transport, host, port, tls))
    return tuple(
        SecretUse(secret, device.segment, describe_link(link), digest, (f"{host}:{port}",)) for secret in secrets
    )


def describe_link(link: LinkDescription) -> str:
    """Describe the connection to a device for people: its transport, and its address or port."""
    if link.transport == "mqtt_json":
        host, port, tls = link.broker
        return f"{link.transport} at the broker {host}:{port} {'with' if tls else 'without'} TLS"
    address = link.port or link.address or link.channel or link.host or f"bus {link.bus}"
    return f"{link.transport} at {address}{f':{link.tcp_port}' if link.tcp_port and not link.port else ''}"


def _origin(url: str) -> str:
    """Return scheme, host and port of a URL, without user and password."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or PORTS.get(parts.scheme, 0)}"


def _find_withheld(confirmed: Mapping[str, Any], _: object, plan: "Plan") -> tuple[SecretUse, ...]:
    # AX-11.N-3: a use that no person confirmed is withheld
    return tuple(use for use in secret_uses(plan) if not use.is_confirmed(confirmed))


def _remember(withheld: tuple[SecretUse, ...], plan: "Plan") -> dict[str, str]:
    """Return the confirmed uses of secrets in a plan: a description of each use, by its key."""
    unconfirmed = frozenset(withheld)
    return {use.key: str(use) for use in secret_uses(plan) if use not in unconfirmed}


SECRETS: Final = Order("secrets", _find_withheld, _remember)
