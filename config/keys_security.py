"""Authorization, delegation tokens and TLS."""

from __future__ import annotations

from config.definitions import ConfigKeys, Effect, OneOf, Range, Setting
from config.vocabulary import (
    AUTHORIZERS,
    BOOLEAN,
    CLASS,
    INT,
    LIST,
    LONG,
    NO_ENCODER,
    NO_PLUGINS,
    PASSWORD,
    PER_BROKER,
    STRING,
)


class SecurityKeys(ConfigKeys):
    """Authorization, delegation tokens and TLS."""

    authorizer_class_name = Setting(STRING, "", "Class that decides who may do what.", AUTHORIZERS)
    principal_builder_class = Setting(
        CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "Class that names the principal of a connection.",
        update_mode=PER_BROKER,
        refusal=NO_PLUGINS,
    )
    security_providers: Setting[str | None] = Setting(STRING, None, "Java security providers.", refusal=NO_PLUGINS)
    connection_failed_authentication_delay_ms = Setting(
        INT, 100, "How long the close of a connection waits after failed authentication.", Range(0)
    )
    connections_max_reauth_ms = Setting(
        LONG, 0, "Time after which a SASL session must authenticate again; 0 for never.", effect=Effect.SASL
    )
    delegation_token_master_key: Setting[str | None] = Setting(
        PASSWORD, None, "Old name of delegation.token.secret.key.", effect=Effect.TOKENS
    )
    delegation_token_secret_key: Setting[str | None] = Setting(
        PASSWORD,
        None,
        "Secret that signs delegation tokens, the same on all brokers; without it there are none.",
        effect=Effect.TOKENS,
    )
    delegation_token_max_lifetime_ms = Setting(
        LONG, 604_800_000, "Longest life of a delegation token.", Range(1), effect=Effect.TOKENS
    )
    delegation_token_expiry_time_ms = Setting(
        LONG, 86_400_000, "Life of a delegation token between renewals.", Range(1), effect=Effect.TOKENS
    )
    delegation_token_expiry_check_interval_ms = Setting(
        LONG, 3_600_000, "How often the controller removes expired delegation tokens.", Range(1), effect=Effect.TOKENS
    )
    password_encoder_secret: Setting[str | None] = Setting(
        PASSWORD, None, "Secret that encodes passwords kept in ZooKeeper.", effect=Effect.ENCODER
    )
    password_encoder_old_secret: Setting[str | None] = Setting(
        PASSWORD, None, "Former secret, while passwords are encoded anew.", refusal=NO_ENCODER, effect=Effect.ENCODER
    )
    password_encoder_keyfactory_algorithm: Setting[str | None] = Setting(
        STRING, None, "Key factory for encoding passwords.", effect=Effect.ENCODER
    )
    password_encoder_cipher_algorithm = Setting(
        STRING, "AES/CBC/PKCS5Padding", "Cipher for encoding passwords.", effect=Effect.ENCODER
    )
    password_encoder_key_length = Setting(
        INT, 128, "Key length for encoding passwords.", Range(8), effect=Effect.ENCODER
    )
    password_encoder_iterations = Setting(
        INT, 4096, "Iterations for encoding passwords.", Range(1024), effect=Effect.ENCODER
    )
    ssl_allow_dn_changes = Setting(
        BOOLEAN, False, "Whether a renewed certificate may have another subject.", effect=Effect.TLS
    )
    ssl_allow_san_changes = Setting(
        BOOLEAN, False, "Whether a renewed certificate may lack alternative names.", effect=Effect.TLS
    )
    ssl_cipher_suites: Setting[tuple[str, ...]] = Setting(
        LIST, (), "TLS cipher suites allowed; empty for all.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_client_auth = Setting(
        STRING,
        "none",
        "Whether clients must show a certificate.",
        OneOf(("required", "requested", "none")),
        PER_BROKER,
        effect=Effect.TLS,
    )
    ssl_enabled_protocols: Setting[tuple[str, ...]] = Setting(
        LIST, ("TLSv1.2", "TLSv1.3"), "TLS versions allowed.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_endpoint_identification_algorithm = Setting(
        STRING,
        "https",
        "How a server's name is checked against its certificate.",
        update_mode=PER_BROKER,
        effect=Effect.TLS,
    )
    ssl_engine_factory_class: Setting[str | None] = Setting(
        CLASS, None, "Java class that makes TLS engines.", update_mode=PER_BROKER, refusal=NO_PLUGINS, effect=Effect.TLS
    )
    ssl_key_password: Setting[str | None] = Setting(
        PASSWORD, None, "Password of the private key.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_keymanager_algorithm = Setting(
        STRING, "SunX509", "Java key manager algorithm.", update_mode=PER_BROKER, refusal=NO_PLUGINS, effect=Effect.TLS
    )
    ssl_keystore_certificate_chain: Setting[str | None] = Setting(
        PASSWORD, None, "Certificate chain in PEM.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_keystore_key: Setting[str | None] = Setting(
        PASSWORD, None, "Private key in PEM.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_keystore_location: Setting[str | None] = Setting(
        STRING, None, "File with the broker's key and certificate.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_keystore_password: Setting[str | None] = Setting(
        PASSWORD, None, "Password of the key store.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_keystore_type = Setting(STRING, "JKS", "Format of the key store.", update_mode=PER_BROKER, effect=Effect.TLS)
    ssl_principal_mapping_rules = Setting(
        STRING, "DEFAULT", "Rules from a certificate's subject to a principal.", effect=Effect.TLS
    )
    ssl_protocol = Setting(
        STRING,
        "TLSv1.3",
        "TLS version of a context; ssl.enabled.protocols says what is spoken.",
        OneOf(("TLS", "TLSv1.2", "TLSv1.3")),
        PER_BROKER,
        effect=Effect.TLS,
    )
    ssl_provider: Setting[str | None] = Setting(
        STRING, None, "Java security provider for TLS.", update_mode=PER_BROKER, refusal=NO_PLUGINS, effect=Effect.TLS
    )
    ssl_secure_random_implementation: Setting[str | None] = Setting(
        STRING, None, "Java random generator for TLS.", update_mode=PER_BROKER, refusal=NO_PLUGINS, effect=Effect.TLS
    )
    ssl_trustmanager_algorithm = Setting(
        STRING, "PKIX", "Java trust manager algorithm.", update_mode=PER_BROKER, refusal=NO_PLUGINS, effect=Effect.TLS
    )
    ssl_truststore_certificates: Setting[str | None] = Setting(
        PASSWORD, None, "Trusted certificates in PEM.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_truststore_location: Setting[str | None] = Setting(
        STRING, None, "File with trusted certificates.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_truststore_password: Setting[str | None] = Setting(
        PASSWORD, None, "Password of the trust store.", update_mode=PER_BROKER, effect=Effect.TLS
    )
    ssl_truststore_type = Setting(
        STRING, "JKS", "Format of the trust store.", update_mode=PER_BROKER, effect=Effect.TLS
    )
