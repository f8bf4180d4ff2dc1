"""SASL/GSSAPI: Kerberos logins, short names of principals, and the library, which is loaded where GSSAPI is used."""
