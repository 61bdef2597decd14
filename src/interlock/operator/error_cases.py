"""The named errors of the operator endpoint: what each one means, for its OpenAPI document."""

import msgspec


class ErrorCase(msgspec.Struct, frozen=True):
    name: str
    status: int
    meaning: str


# Of every endpoint, or of every endpoint of a kind.
INVALID_PARAMETER = ErrorCase("invalid_parameter", 400, "a query parameter is unknown or has no possible value")
INVALID_JSON = ErrorCase("invalid_json", 400, "the body is not JSON")
INVALID_BODY = ErrorCase("invalid_body", 400, "the body has another shape, or a member that is not known")
UNAUTHORISED = ErrorCase("unauthorised", 401, "no credential of an operator was shown")
ROLE_REQUIRED = ErrorCase("role_required", 403, "the credential does not have the role that this takes")
FOREIGN_PAGE = ErrorCase("bad_origin", 403, "another page's Origin or Sec-Fetch-Site")
SESSION_KEY = ErrorCase("session_key", 403, "a browser's session sends its key as X-Interlock-Session")
MISDIRECTED = ErrorCase("bad_host", 421, "the Host is not this node's; see node.operator_url")
BODY_TOO_LARGE = ErrorCase("body_too_large", 413, "the body is larger than 64 KiB")
UNSUPPORTED_MEDIA_TYPE = ErrorCase("unsupported_media_type", 415, "the body is not application/json")
INTERNAL = ErrorCase("internal", 500, "a fault of the node; details.ref is repeated in its log")
UNAVAILABLE = ErrorCase("unavailable", 503, "the store cannot answer; nothing was done")

# Of single endpoints.
AMBIGUOUS = ErrorCase("ambiguous", 409, "several have this name; details names them")
AMBIGUOUS_ID = ErrorCase("ambiguous_id", 409, "several approvals have an id that begins like this")
ANSWER_NEEDED = ErrorCase("answer_needed", 400, "the question has several answers, and none was given")
AUTH_FAILED = ErrorCase("auth_failed", 409, "the authorization server does not give a page to agree on")
BAD_GRANT = ErrorCase("bad_grant", 400, "the grant cannot be signed as it is; the message says why")
BAD_GRANT_DRAFT = ErrorCase("bad_grant", 409, "no such grant can be signed; the message says why")
BAD_HOST = ErrorCase("bad_host", 409, "not the name of a host")
BAD_SECRET_NAME = ErrorCase("bad_secret_name", 409, "a secret cannot have this name")
BAD_TOPIC = ErrorCase("bad_topic", 409, "a room cannot have this name")
BAD_ROOM_OF_TOKEN = ErrorCase("bad_participant", 409, "no participant has this id; or bad_topic, reserved_id")
BAD_TOKEN_NAME = ErrorCase("bad_token_name", 409, "a token cannot have this name")
FOLDED = ErrorCase("folded", 409, "the page showed some values by their size alone, and was not told to go on")
CHANGED = ErrorCase("changed", 409, "it is not what was shown: the files, or the definition of the tool")
CLASSIFIED = ErrorCase("classified", 409, "it is known already what the tool does")
CONFIRMATION_OVER = ErrorCase(
    "confirmation_used", 409, "used; or confirmation_expired, _denied, _void: it is decided or over"
)
PROPOSAL_OVER = ErrorCase("already_claimed", 409, "a room's proposal is carried out already; or proposal_expired")
INVALID_PROPOSAL = ErrorCase(
    "invalid_proposal", 409, "the params can be read in several ways; or unknown_proposal: it is none of a room"
)
PROPOSAL_UNREADY = ErrorCase("target_absent", 409, "its target is not in the room; or one_recipient: it names no one")
PROPOSAL_BARRED = ErrorCase(
    "self_approval", 403, "the proposer decides; or privilege_violation: restricted in the room"
)
LOGIN_OVER = ErrorCase("login_over", 404, "the login link was used, or is older than a minute")
LOGIN_FROM_BROWSER = ErrorCase("login_from_browser", 403, "a browser's session makes no login links")
EXISTS = ErrorCase("exists", 409, "the name is taken")
KEY_NOT_MADE = ErrorCase("exists", 409, "the name is taken; or bad_passphrase, not_written: no key was made")
NOT_LOCAL = ErrorCase("not_local", 403, "a passphrase is taken on the node's own machine, or over https")
TOO_OFTEN = ErrorCase("too_often", 429, "too many wrong passphrases; details.wait_s says how long to wait")
NO_OAUTH = ErrorCase("no_oauth", 409, "the server is reached without OAuth")
NO_PASSKEYS = ErrorCase("no_passkeys_here", 409, "browsers use no passkeys at this address")
NOT_FOUND = ErrorCase("not_found", 404, "there is none of this name; details.nearest names what is like it")
NOT_GRANTABLE = ErrorCase("not_grantable", 409, "no standing grant can cover calls of this tool; the message says why")
NOT_LOOKED_AT = ErrorCase("not_looked_at", 409, "the candidate was not looked at before")
NOT_RUNNING = ErrorCase("not_running", 409, "the driver's server does not run")
NOTHING_TO_UPDATE = ErrorCase("nothing_to_update", 409, "the server is not installed from anywhere")
PASSKEY_INVALID = ErrorCase("passkey_invalid", 403, "what the browser made is not what was asked for")
PASSKEY_INVITATION_OVER = ErrorCase("passkey_invalid", 404, "the invitation is used or over")
PROOF_INVALID = ErrorCase("proof_invalid", 403, "the proof does not hold; details.reason says why")
PROOF_REQUIRED = ErrorCase("proof_required", 403, "approving this takes a proof")
PARTY = ErrorCase("self_approval", 403, "a party to a request to the registry of names does not decide it")
REASON_REQUIRED = ErrorCase("reason_required", 400, "a decision on a request to the registry of names says why")
NOT_RETURNABLE = ErrorCase("not_returnable", 400, "only requests to the registry of names can be returned")
NAMES_REFUSED = ErrorCase(
    "name_taken", 409, "or another reason of the registry: name_syntax, prefix_conflict, not_change_controller, ..."
)
REJECTED = ErrorCase("rejected", 409, "the driver's files cannot be used")
PARTICIPANT_REMOVED = ErrorCase("removed", 409, "the participant was removed: a decision without an end lets it in")
ROOM_EXISTS = ErrorCase("room_exists", 409, "there is a room of this name")
SELF_PROMOTION = ErrorCase("self_promotion", 403, "the participant is the one who asks")
SELF_APPROVAL = ErrorCase("self_approval", 401, "the credential is a caller's: who may ask does not decide")
UNKNOWN_PRIVILEGE = ErrorCase("unknown_privilege", 400, "a participant is full or restricted, and nothing else")
TOPIC_REQUIRED = ErrorCase("topic_required", 409, "the participant is in several rooms; say ?topic=")
TOO_MANY_HOSTS = ErrorCase("too_many_hosts", 409, "the driver may reach as many hosts as there can be")
UNKNOWN_FILE = ErrorCase("unknown_path", 404, "there is no such file")
UPDATE_FAILED = ErrorCase("update_failed", 409, "the newest release does not start")
WITHHELD = ErrorCase("withheld", 409, "the tool is withheld; the message says why")
