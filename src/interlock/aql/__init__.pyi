from interlock.sdk.aql import (
    Adapter as Adapter,
)
from interlock.sdk.aql import (
    BigInt as BigInt,
)
from interlock.sdk.aql import (
    Binary as Binary,
)
from interlock.sdk.aql import (
    Category as Category,
)
from interlock.sdk.aql import (
    Code as Code,
)
from interlock.sdk.aql import (
    Concurrency as Concurrency,
)
from interlock.sdk.aql import (
    Context as Context,
)
from interlock.sdk.aql import (
    Danger as Danger,
)
from interlock.sdk.aql import (
    DeclarationInvalid as DeclarationInvalid,
)
from interlock.sdk.aql import (
    Example as Example,
)
from interlock.sdk.aql import (
    Execution as Execution,
)
from interlock.sdk.aql import (
    Limits as Limits,
)
from interlock.sdk.aql import (
    Listing as Listing,
)
from interlock.sdk.aql import (
    OperationFailed as OperationFailed,
)
from interlock.sdk.aql import (
    Page as Page,
)
from interlock.sdk.aql import (
    Sort as Sort,
)
from interlock.sdk.aql import (
    already_exists as already_exists,
)
from interlock.sdk.aql import (
    fail as fail,
)
from interlock.sdk.aql import (
    not_found as not_found,
)
