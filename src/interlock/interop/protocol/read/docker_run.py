"""The command line of `docker run` (and podman's): the image, what it is given, and options with no place in a driver.

Returns None where an option is not known: whether it takes a value decides which word is the image.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*(?:@sha256:[0-9a-f]{64})?", re.ASCII)

OURS: Final = frozenset({"-i", "--interactive", "--rm", "-t", "--tty", "--init", "-it", "-ti", "--quiet", "-q"})
FLAGS: Final = frozenset(
    {"-d", "--detach", "--privileged", "--read-only", "-P", "--publish-all", "--no-healthcheck", "--oom-kill-disable"}
    | {"--disable-content-trust", "--sig-proxy", "--replace", "--tls-verify"}
)
WITH_VALUE: Final = frozenset(
    re.findall(
        r"\S+",
        """-p --publish --name --network --net -u --user -w --workdir -h --hostname --add-host --cap-add --cap-drop
        --security-opt --device --gpus --memory -m --cpus -c --cpu-shares --restart --entrypoint -l --label --label-file
        --log-driver --log-opt --dns --dns-search --dns-option --platform --pull --tmpfs --ulimit --shm-size --pid --ipc
        --uts --userns --cgroupns --group-add --link --expose --env-file --ip --ip6 --mac-address --network-alias
        --runtime --stop-signal --stop-timeout --sysctl --volumes-from --volume-driver --cidfile --isolation
        --memory-swap --pids-limit --health-cmd --domainname -a --attach --annotation --mount -v --volume -e --env""",
    )
)
HARMLESS: Final = frozenset({"--name", "--pull", "-l", "--label"})  # say nothing about what the server may do


class DockerRun(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    passed: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def docker_run(args: list[str]) -> DockerRun | None:
    env: dict[str, str] = {}
    passed: list[str] = []
    volumes: list[str] = []
    dropped: list[str] = []
    at = 0
    while at < len(args) and args[at].startswith("-"):
        flag, equals, value = args[at].partition("=")
        at += 1
        if flag in OURS or _all_ours(flag):
            continue
        if flag in FLAGS:
            dropped.append(flag)
            continue
        if flag not in WITH_VALUE and flag[:2] in {"-e", "-v", "-p", "-u", "-w"} and len(flag) > 2:
            flag, equals, value = args[at - 1][:2], "=", args[at - 1][2:]  # -eKEY, -v/a:/b
        if flag not in WITH_VALUE:
            return None
        if not equals:
            if at >= len(args):
                return None
            value = args[at]
            at += 1
        if flag in {"-e", "--env"}:
            name, assigned, setting = value.partition("=")
            if assigned:
                env[name] = setting
            else:
                passed.append(name)
        elif flag in {"-v", "--volume"}:
            volumes.append(value)
        elif flag == "--mount" and (volume := _bind(value)) is not None:
            volumes.append(volume)
        elif flag not in HARMLESS:
            # Names of networks and limits say what was meant; a label or an entry point may hold anything.
            dropped.append(f"{flag} {value}" if flag in {"--network", "--net", "--pid", "--ipc", "--userns"} else flag)
    if at >= len(args) or not _IMAGE.fullmatch(args[at]):
        return None
    return DockerRun(
        image=args[at],
        args=tuple(args[at + 1 :]),
        env=env,
        passed=tuple(dict.fromkeys(passed)),
        volumes=tuple(volumes),
        dropped=tuple(dict.fromkeys(dropped)),
    )


def _all_ours(flag: str) -> bool:
    return re.fullmatch(r"-[itd]+", flag) is not None and "d" not in flag


def _bind(value: str) -> str | None:
    """type=bind,src=/a,dst=/b,readonly as /a:/b:ro."""
    parts = dict(each.partition("=")[::2] for each in value.split(","))
    source = parts.get("src", parts.get("source"))
    target = parts.get("dst", parts.get("target", parts.get("destination")))
    if parts.get("type") != "bind" or not source or not target:
        return None
    return f"{source}:{target}" + (":ro" if "readonly" in parts or "ro" in parts else "")
