"""Orders of the values of configuration keys, from strict to loose.

An agent with a shell can edit the files of a node. Once somebody may approve, an edit that lets through more must
therefore not count before an approver has signed it, and an edit that lets through less counts at once. Each key
declares on its field what "more" means:

    mode: Annotated[Literal["gated", "defer", "open"], Key("defer"), ranked("gated", "defer", "open")] = "gated"

An order joins the value that was signed with the value that a file has now: the result is as strict as the stricter of
both. The change loosens the guard exactly if the result is not the new value. A key without a declared order has
`ANY_CHANGE`, so that a key that no one thought about waits for a signature whenever it changes. `FREE` says that a key
is not about the guard.

Signed values are kept on disk, where no secret may be written in clear text. An order whose keys may hold secrets
therefore remembers fingerprints of items instead of the items. It can drop an item that was not signed, but not restore
one. Everything here is values in, values out, except the content of files that are compared (`FILE_CONTENT`).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec

# The value that was signed, the value that is written, and the struct that holds the written value -> the strictest
# value that contains both.
Join = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True)
class Order:
    """The rule by which two values of a key are compared as stricter or looser. A looser value takes effect only after
    a person has signed it.

    `remember` computes what is kept of a signed value, which `join` then gets. Without it, the value itself is kept.
    """

    name: str
    join: Join = field(repr=False)
    remember: Callable[[Any, Any], Any] | None = field(default=None, repr=False)
    # Of a struct, the orders of its fields.
    parts: Mapping[str, "Order"] = field(default_factory=dict, repr=False)


def fingerprint(value: Any) -> str:
    """Return a SHA-256 digest of a configured value."""
    return hashlib.sha256(msgspec.json.encode(value, enc_hook=str, order="deterministic")).hexdigest()


def _join_limits(signed: Any, written: Any, _: Any) -> Any:
    """Return the smaller of two limits, because lower limits are stricter. None means no limit."""
    return signed if written is None else written if signed is None else min(signed, written)


def _join_costs(signed: Any, written: Any, _: Any) -> Any:
    """Return the larger of two costs, because higher costs are stricter. If one of them is None, return the signed
    cost.
    """
    return signed if written is None or signed is None else max(signed, written)


def _fingerprints(value: Any, _: Any) -> list[str]:
    return [fingerprint(each) for each in (value.items() if isinstance(value, Mapping) else value)]


def _drop_added(signed: Any, written: Any, _: Any) -> Any:
    """Return those written items that were also signed. `signed` holds fingerprints of the signed items."""
    signed = frozenset(signed)
    if isinstance(written, Mapping):
        return {name: each for name, each in written.items() if fingerprint((name, each)) in signed}
    return tuple(each for each in written if fingerprint(each) in signed)


def _drop_added_globs(signed: Any, written: Any, _: Any) -> Any:
    """Return those written globs that match nothing beyond what the signed globs match."""
    exact = frozenset(signed)
    prefixes = {each[:-1] for each in exact if each.endswith("*") and not _SPECIAL.intersection(each[:-1])}
    lengths = {len(each) for each in prefixes}
    return tuple(
        each
        for each in written
        if each in exact or any(each[:length] in prefixes for length in lengths if length <= len(each))
    )


_SPECIAL = frozenset("*?[]")


def _restore_removed(signed: Any, written: Any, _: Any) -> Any:
    """Return the written items, followed by the signed items that are missing among them."""
    present = frozenset(written)
    return (*written, *(each for each in signed if each not in present))


def file_digest(path: Path | None) -> str:
    """Return a digest of the content of a file, or a text that is no digest if the file cannot be read."""
    try:
        return "none" if path is None else f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError:
        return "unreadable"


def _remember_file(path: Path | None, _: Any) -> dict[str, str] | None:
    return None if path is None else {"path": str(path), "content": file_digest(path)}


def _join_files(signed: Any, written: Path | None, _: Any) -> Path | None:
    """Return the path of a file with the signed content: the written path or else the signed one. Return None if
    neither file has this content.
    """
    if signed is None or written is None:
        return None
    if isinstance(signed, str):  # stored by a version that compared paths
        return Path(signed)
    content = signed["content"]
    return next((path for path in (written, Path(signed["path"])) if file_digest(path) == content), None)


# The key is not about the guard.
FREE = Order("free", lambda signed, written, _: written, lambda value, _: None)
# Every change waits. This is also the order of a key that declares none.
ANY_CHANGE = Order("any_change", lambda signed, written, _: signed)
# Of a number, a larger or a smaller one loosens. None is no limit at all.
MORE_IS_LOOSER = Order("more_is_looser", _join_limits)
LESS_IS_LOOSER = Order("less_is_looser", _join_costs)
TRUE_IS_LOOSER = Order("true_is_looser", lambda signed, written, _: signed and written)
FALSE_IS_LOOSER = Order("false_is_looser", lambda signed, written, _: signed or written)
# Of a list or a table, items that are added, or that are taken away, loosen.
ADDED_IS_LOOSER = Order("added_is_looser", _drop_added, _fingerprints)
GLOB_ADDED_IS_LOOSER = Order("glob_added_is_looser", _drop_added_globs)
REMOVED_IS_LOOSER = Order("removed_is_looser", _restore_removed)


# Of a file whose content others are believed by: its content waits, whatever its path is. None believes no one.
FILE_CONTENT = Order("file_content", _join_files, _remember_file)


def _join(order: Order, signed: Any, written: Any, whole: Any) -> Any:
    """Combine the signed and the written form of a value that is part of a larger value. `whole` is the written larger
    value.
    """
    return order.join(signed if order.remember is None else order.remember(signed, whole), written, whole)


def ranked(*values: Any) -> Order:
    """Return the order of a key whose possible values are listed from strict to loose. A change from or to another
    value takes effect only after a signature.
    """

    def join(signed: Any, written: Any, _: Any) -> Any:
        if signed not in values or written not in values:
            return signed
        return values[min(values.index(signed), values.index(written))]

    return Order("ranked", join)


def if_set(order: Order) -> Order:
    """Return the order, from strict to loose, of a key that inherits its value while it is None. Changes from or to
    None take effect only after a signature.
    """

    def join(signed: Any, written: Any, whole: Any) -> Any:
        return signed if signed is None or written is None else _join(order, signed, written, whole)

    return Order("if_set", join)


def join_structs(signed: Any, written: Any, orders: Mapping[str, Order]) -> Any:
    """Combine a signed and a written struct of the same type, field by field. A field without an order keeps its signed
    value, and so does the whole struct if either is None.
    """
    if signed is None or written is None or type(signed) is not type(written):
        return signed
    joined = {
        name: _join(orders.get(name, ANY_CHANGE), getattr(signed, name), getattr(written, name), written)
        for name in written.__struct_fields__
        if getattr(signed, name) != getattr(written, name)
    }
    return msgspec.structs.replace(written, **joined) if joined else written


def fields(**orders: Order) -> Order:
    """Return the order, from strict to loose, of a struct type. It is made from one order for each field. If the struct
    contains secrets, use `ADDED_IS_LOOSER` instead.
    """
    return Order("fields", lambda signed, written, _: join_structs(signed, written, orders), parts=orders)


def find_order(annotation: Any) -> Order | None:
    """Return the order, from strict to loose, that the annotation of a field declares, or None if it declares none."""
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return next((note for note in notes if isinstance(note, Order)), None)


def orders_of(struct: type[msgspec.Struct]) -> dict[str, Order]:
    """Return the orders, from strict to loose, that are declared on the fields of a struct type, by field name."""
    orders = {each.name: find_order(each.type) for each in msgspec.structs.fields(struct)}
    return {name: order for name, order in orders.items() if order is not None}


def declared_fields(struct: type[msgspec.Struct]) -> Order:
    """Return the order, from strict to loose, of a struct type. It is made from the orders that are declared on the
    fields.
    """
    return fields(**orders_of(struct))


def table(order: Order, absent: Any) -> Order:
    """Return the order, from strict to loose, of a table in which all values have the same order. A missing name counts
    as the value `absent`.
    """

    def join(signed: Any, written: Any, whole: Any) -> Any:
        names = (*written, *(each for each in signed if each not in written))
        values = {name: _join(order, signed.get(name, absent), written.get(name, absent), whole) for name in names}
        return {
            name: value
            for name, value in values.items()
            if value != absent or (name in written and written[name] == value)
        }

    return Order("table", join)


def first_match(
    identity: str, order: Order, absent: Callable[[Any], Any], unadded: Callable[[Any], Any] | None = None
) -> Order:
    """Return the order, from strict to loose, of a list of rules in which the first matching rule applies.

    Entries with the same `identity` at the same position are joined. Further entries at the end are joined with
    `absent(entry)`, which is what holds without the entry. If entries were inserted, removed or moved in any other way,
    the signed list counts, because the entries alone do not say what another order lets through.

    What holds without an entry may depend on who it is for. Then `absent` returns the loosest of that, for entries that
    are removed, and `unadded` the strictest, for entries that are added. An added entry for which it returns None waits
    as a whole.
    """
    before_added = unadded or absent

    def join(signed: Any, written: Any, whole: Any) -> Any:
        if any(getattr(a, identity) != getattr(b, identity) for a, b in zip(signed, written, strict=False)):
            return signed
        both = [_join(order, a, b, whole) for a, b in zip(signed, written, strict=False)]
        bases = [(before_added(each), each) for each in written[len(signed) :]]
        added = [_join(order, base, each, whole) for base, each in bases if base is not None]
        restored = [each for each in signed[len(written) :] if _join(order, each, absent(each), whole) != absent(each)]
        return (*both, *added, *restored)

    return Order("first_match", join)


def to_stored(order: Order, value: Any, whole: Any) -> Any:
    """Convert a value of a signed plan to the JSON value that is stored for it."""
    remembered = value if order.remember is None else order.remember(value, whole)
    return msgspec.to_builtins(remembered, enc_hook=str)


def from_stored(order: Order, stored: Any, type_: Any) -> Any:
    """Convert a stored signed value to the form that `order.join` takes. Raise msgspec.ValidationError if the value no
    longer has the type of its key.
    """
    if order.remember is not None:
        return stored
    return msgspec.convert(stored, type_, dec_hook=lambda wanted, value: Path(value) if wanted is Path else value)
