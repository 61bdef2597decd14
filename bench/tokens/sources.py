"""The real servers whose definitions the token benchmark counts: package, version, what they need to start.

None gets a credential: the values only make a server list its tools.
"""

from typing import NamedTuple


class Source(NamedTuple):
    kind: str  # npm or pypi
    package: str
    version: str
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    command: str | None = None  # of a PyPI package that calls its program otherwise


SOURCES: dict[str, Source] = {
    "git": Source("pypi", "mcp-server-git", "2026.10.19"),
    "time": Source("pypi", "mcp-server-time", "2026.10.19"),
    "fetch": Source("pypi", "mcp-server-fetch", "2026.10.24"),
    "atlassian": Source(
        "pypi",
        "mcp-atlassian",
        "0.23.1",
        environment=(
            ("JIRA_URL", "https://x.example"),
            ("JIRA_USERNAME", "x"),
            ("JIRA_API_TOKEN", "x"),
            ("CONFLUENCE_URL", "https://x.example/wiki"),
            ("CONFLUENCE_USERNAME", "x"),
            ("CONFLUENCE_API_TOKEN", "x"),
        ),
    ),
    "excel": Source("pypi", "excel-mcp-server", "2.2.2", arguments=("stdio",)),
    "word": Source("pypi", "office-word-mcp-server", "1.1.11", command="word_mcp_server"),
    "awsdoc": Source("pypi", "awslabs.aws-documentation-mcp-server", "1.2.3"),
    "dynamodb": Source("pypi", "awslabs.dynamodb-mcp-server", "2.1.8", environment=(("AWS_REGION", "us-east-1"),)),
    "cloudwatch": Source("pypi", "awslabs.cloudwatch-mcp-server", "0.3.1", environment=(("AWS_REGION", "us-east-1"),)),
    "iam": Source("pypi", "awslabs.iam-mcp-server", "1.1.2", environment=(("AWS_REGION", "us-east-1"),)),
    "blender": Source("pypi", "blender-mcp", "2.0.0"),
    "duckduckgo": Source("pypi", "duckduckgo-mcp-server", "0.7.0"),
    "arxiv": Source("pypi", "arxiv-mcp-server", "0.8.2"),
    "redispy": Source("pypi", "redis-mcp-server", "0.5.1"),
    "everything": Source("npm", "@modelcontextprotocol/server-everything", "2026.8.31"),
    "filesystem": Source("npm", "@modelcontextprotocol/server-filesystem", "2026.8.31", arguments=(".",)),
    "memory": Source("npm", "@modelcontextprotocol/server-memory", "2026.8.31"),
    "sequential": Source("npm", "@modelcontextprotocol/server-sequential-thinking", "2026.8.31"),
    "github": Source(
        "npm", "@modelcontextprotocol/server-github", "2025.4.8", environment=(("GITHUB_PERSONAL_ACCESS_TOKEN", "x"),)
    ),
    "gitlab": Source(
        "npm", "@modelcontextprotocol/server-gitlab", "2025.4.25", environment=(("GITLAB_PERSONAL_ACCESS_TOKEN", "x"),)
    ),
    "slack": Source(
        "npm",
        "@modelcontextprotocol/server-slack",
        "2025.4.25",
        environment=(("SLACK_BOT_TOKEN", "x"), ("SLACK_TEAM_ID", "x")),
    ),
    "maps": Source(
        "npm", "@modelcontextprotocol/server-google-maps", "0.6.2", environment=(("GOOGLE_MAPS_API_KEY", "x"),)
    ),
    "puppeteer": Source(
        "npm", "@modelcontextprotocol/server-puppeteer", "2025.5.12", environment=(("PUPPETEER_SKIP_DOWNLOAD", "1"),)
    ),
    "brave": Source("npm", "@modelcontextprotocol/server-brave-search", "0.6.2", environment=(("BRAVE_API_KEY", "x"),)),
    "playwright": Source("npm", "@playwright/mcp", "0.0.83"),
    "chrome": Source("npm", "chrome-devtools-mcp", "1.11.0"),
    "notion": Source("npm", "@notionhq/notion-mcp-server", "2.5.2", environment=(("NOTION_TOKEN", "x"),)),
    "kubernetes": Source("npm", "mcp-server-kubernetes", "4.1.7"),
    "mongodb": Source(
        "npm", "mongodb-mcp-server", "3.0.4", arguments=("--connectionString", "mongodb://127.0.0.1:1/x")
    ),
    "firecrawl": Source("npm", "firecrawl-mcp", "3.26.0", environment=(("FIRECRAWL_API_KEY", "fc-x"),)),
    "exa": Source("npm", "exa-mcp-server", "3.4.1", environment=(("EXA_API_KEY", "x"),)),
    "tavily": Source("npm", "tavily-mcp", "0.2.22", environment=(("TAVILY_API_KEY", "x"),)),
    "context7": Source("npm", "@upstash/context7-mcp", "4.1.1"),
    "figma": Source("npm", "figma-developer-mcp", "0.13.2", arguments=("--figma-api-key=x", "--stdio")),
    "hubspot": Source("npm", "@hubspot/mcp-server", "0.4.0", environment=(("PRIVATE_APP_ACCESS_TOKEN", "pat-x"),)),
    "sentry": Source("npm", "@sentry/mcp-server", "0.39.0", arguments=("--access-token=x",)),
    "azure": Source("npm", "@azure/mcp", "2.0.5", arguments=("server", "start")),
    "shopify": Source("npm", "@shopify/dev-mcp", "1.16.0"),
    "airtable": Source("npm", "airtable-mcp-server", "1.14.0", environment=(("AIRTABLE_API_KEY", "pat.x"),)),
    "linear": Source("npm", "linear-mcp-server", "0.1.0", environment=(("LINEAR_API_KEY", "x"),)),
    "neon": Source("npm", "@neondatabase/mcp-server-neon", "0.6.5", arguments=("start", "x")),
    "bitbucket": Source("npm", "@aashari/mcp-server-atlassian-bitbucket", "3.1.0"),
    "jira": Source("npm", "@aashari/mcp-server-atlassian-jira", "3.3.0"),
    "cloudinary": Source("npm", "@cloudinary/asset-management-mcp", "0.11.0", arguments=("start",)),
    "elastic": Source(
        "npm",
        "@elastic/mcp-server-elasticsearch",
        "0.3.1",
        environment=(("ES_URL", "http://127.0.0.1:1"), ("ES_API_KEY", "x")),
    ),
    "antv": Source("npm", "@antv/mcp-server-chart", "0.9.10"),
    "gitmcp": Source("npm", "@cyanheads/git-mcp-server", "2.15.3"),
    "obsidian": Source("npm", "mcp-obsidian", "1.0.0", arguments=(".",)),
    "mobile": Source("npm", "@mobilenext/mobile-mcp", "1.0.4"),
    "dataforseo": Source(
        "npm",
        "dataforseo-mcp-server",
        "3.1.1",
        environment=(("DATAFORSEO_USERNAME", "x"), ("DATAFORSEO_PASSWORD", "x")),
    ),
    "eslint": Source("npm", "@eslint/mcp", "0.3.13"),
    "brightdata": Source("npm", "@brightdata/mcp", "2.11.3", environment=(("API_TOKEN", "x"),)),
}
