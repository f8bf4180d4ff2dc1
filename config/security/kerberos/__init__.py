"""SASL/GSSAPI: Kerberos logins, principals' short names, and the library; imported only where GSSAPI is asked for."""
