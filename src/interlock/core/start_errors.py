"""Why a node does not start although its configuration could be read. The operator acts; the message says on what.

CannotStart
  AnchorInvalid        an anchor's key
  CertificatesInvalid  node.client_ca or node.crl
  TlsInvalid           a certificate and its key: of an endpoint, or of a link to a parent
"""


class CannotStart(Exception):
    """The root of the tree above. A message names the file and never what stands in it."""


class AnchorInvalid(CannotStart):
    """An anchor's key cannot be used."""


class CertificatesInvalid(CannotStart):
    """node.client_ca or node.crl cannot be used."""


class TlsInvalid(CannotStart):
    """A certificate or its key cannot be used."""
