"""Twenty tasks over ten tools: what a model looks for, and the calls that do it.

`words`: what it searches for where it has to search. `wrong`: it first leaves out a required argument, is told, and
calls again. The same tasks are done at every size of the catalogue.
"""

from typing import Any, NamedTuple


class Step(NamedTuple):
    tool: str  # SERVER.TOOL
    arguments: dict[str, Any]
    words: str
    wrong: bool = False


FILES = "filesystem"
TASKS: tuple[tuple[Step, ...], ...] = (
    (Step(f"{FILES}.read_text_file", {"path": "/srv/notes/todo.md"}, "read text file"),),
    (Step(f"{FILES}.read_text_file", {"path": "/srv/app/config.toml", "head": 20}, "read the first lines of a file"),),
    (
        Step(
            f"{FILES}.write_file", {"path": "/srv/notes/done.md", "content": "- all of it\n"}, "write file", wrong=True
        ),
    ),
    (Step(f"{FILES}.write_file", {"path": "/srv/a.txt", "content": "hello"}, "create a file with content"),),
    (Step(f"{FILES}.search_files", {"path": "/srv", "pattern": "*.log"}, "search files by pattern"),),
    (Step(f"{FILES}.search_files", {"path": "/srv/app", "pattern": "**/*.py"}, "find files recursively", wrong=True),),
    (Step(f"{FILES}.list_directory", {"path": "/srv"}, "list directory"),),
    (
        Step(f"{FILES}.list_directory", {"path": "/srv/notes"}, "list the files of a folder"),
        Step(f"{FILES}.read_text_file", {"path": "/srv/notes/todo.md"}, "read text file"),
    ),
    (Step("git.git_status", {"repo_path": "/srv/app"}, "git status"),),
    (Step("git.git_status", {"repo_path": "/srv/site"}, "working tree status of a repository", wrong=True),),
    (Step("git.git_log", {"repo_path": "/srv/app", "max_count": 5}, "git log"),),
    (
        Step("git.git_status", {"repo_path": "/srv/app"}, "git status"),
        Step("git.git_log", {"repo_path": "/srv/app", "max_count": 3}, "recent commits"),
    ),
    (Step("git.git_commit", {"repo_path": "/srv/app", "message": "fix the parser"}, "git commit", wrong=True),),
    (Step("git.git_commit", {"repo_path": "/srv/site", "message": "publish"}, "record changes to the repository"),),
    (
        Step(
            "memory.create_entities",
            {"entities": [{"name": "Ada", "entityType": "person", "observations": ["likes engines"]}]},
            "create entities in the knowledge graph",
        ),
    ),
    (
        Step(
            "memory.create_entities",
            {"entities": [{"name": "Engine", "entityType": "thing", "observations": []}]},
            "remember an entity",
        ),
    ),
    (Step("memory.search_nodes", {"query": "Ada"}, "search nodes"),),
    (Step("memory.search_nodes", {"query": "engines"}, "search the knowledge graph", wrong=True),),
    (
        Step(
            "time.convert_time",
            {"source_timezone": "Europe/Berlin", "time": "14:30", "target_timezone": "Asia/Tokyo"},
            "convert time between time zones",
        ),
    ),
    (
        Step("memory.search_nodes", {"query": "office hours"}, "search nodes"),
        Step(
            "time.convert_time",
            {"source_timezone": "America/New_York", "time": "09:00", "target_timezone": "UTC"},
            "convert time",
        ),
    ),
)
TOOLS = tuple(dict.fromkeys(step.tool for task in TASKS for step in task))
