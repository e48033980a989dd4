"""Decides how TLS is spoken: to clients with a certificate that can be changed while it serves, and to engines."""

import ssl

from kvbudget.errors import BadValueError, printable


class ServerTls:
    """The certificate of the data plane. `reload` reads the files again; connections that are open keep the old one."""

    def __init__(self, certificate: str, key: str | None) -> None:
        """Raises BadValueError for files that are no certificate and its key."""
        self._certificate = certificate
        self._key = key
        self.context = self._loaded()

    def reload(self) -> None:
        """Handshakes from now on get what the files hold. Raises BadValueError, and keeps the old one."""
        self._loaded()  # a context that failed half-way would be left with a key that is not the certificate's
        self.context.load_cert_chain(self._certificate, self._key)

    def _loaded(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # A password callback, or OpenSSL would ask on the terminal for that of a locked key.
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise BadValueError(
                f"--tls-cert {printable(self._certificate[-200:])}: {printable(reason, 200)}",
                fix="give a PEM file with the whole chain, and its key in it or as --tls-key, without a password",
            ) from None
        return context


def engine_context(authorities: str | None) -> ssl.SSLContext:
    """Checks an engine's certificate by the system's authorities, or by those in a PEM file. Raises BadValueError."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ValueError) as error:
        shown = printable((authorities or "")[-200:])
        raise BadValueError(
            f"--backend-ca {shown}: {printable(str(error), 200)}", fix="give a PEM file of certificates"
        ) from None


def _no_password() -> str:
    raise ValueError("the key is locked by a password")
