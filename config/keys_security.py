"""Security: authorization, delegation tokens, TLS and SASL."""

from __future__ import annotations

from config.definitions import (
    AUTHORIZERS,
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    NO_ENCODER,
    NO_KINIT,
    NO_MECHANISM,
    NO_PLUGINS,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    ConfigKeys,
    Effect,
    OneOf,
    Range,
    Setting,
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
        PASSWORD,
        None,
        "Former secret, while passwords are being re-encoded.",
        refusal=NO_ENCODER,
        effect=Effect.ENCODER,
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


class SaslKeys(ConfigKeys):
    """SASL."""

    sasl_client_callback_handler_class: Setting[str | None] = Setting(
        CLASS, None, "Java class for SASL clients.", refusal=NO_MECHANISM, effect=Effect.SASL
    )
    sasl_enabled_mechanisms: Setting[tuple[str, ...]] = Setting(
        LIST, ("GSSAPI",), "SASL mechanisms offered.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_jaas_config: Setting[str | None] = Setting(
        PASSWORD, None, "JAAS configuration of a listener's mechanism.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_kerberos_kinit_cmd = Setting(
        STRING, "/usr/bin/kinit", "Path of kinit.", update_mode=PER_BROKER, refusal=NO_KINIT, effect=Effect.SASL
    )
    sasl_kerberos_min_time_before_relogin = Setting(
        LONG, 60_000, "Pause between Kerberos logins.", update_mode=PER_BROKER, refusal=NO_KINIT, effect=Effect.SASL
    )
    sasl_kerberos_principal_to_local_rules: Setting[tuple[str, ...]] = Setting(
        LIST,
        ("DEFAULT",),
        "Rules from a Kerberos principal to a short name.",
        update_mode=PER_BROKER,
        effect=Effect.SASL,
    )
    sasl_kerberos_service_name: Setting[str | None] = Setting(
        STRING, None, "Kerberos principal name of the brokers.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_kerberos_ticket_renew_jitter = Setting(
        DOUBLE,
        0.05,
        "Random part of the time of a ticket's renewal.",
        update_mode=PER_BROKER,
        refusal=NO_KINIT,
        effect=Effect.SASL,
    )
    sasl_kerberos_ticket_renew_window_factor = Setting(
        DOUBLE,
        0.8,
        "Part of a ticket's life after which it is renewed.",
        update_mode=PER_BROKER,
        refusal=NO_KINIT,
        effect=Effect.SASL,
    )
    sasl_login_callback_handler_class: Setting[str | None] = Setting(
        CLASS, None, "Java class for SASL logins.", effect=Effect.SASL
    )
    sasl_login_class: Setting[str | None] = Setting(
        CLASS, None, "Java class of the login.", refusal=NO_MECHANISM, effect=Effect.SASL
    )
    sasl_login_connect_timeout_ms: Setting[int | None] = Setting(
        INT, None, "How long a connection to an OAuth server may take.", effect=Effect.SASL
    )
    sasl_login_read_timeout_ms: Setting[int | None] = Setting(
        INT, None, "How long an answer of an OAuth server may take.", effect=Effect.SASL
    )
    sasl_login_refresh_buffer_seconds = Setting(
        SHORT, 300, "Time kept before a credential's end for its refresh.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_login_refresh_min_period_seconds = Setting(
        SHORT, 60, "Shortest time between refreshes of a credential.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_login_refresh_window_factor = Setting(
        DOUBLE,
        0.8,
        "Part of a credential's life after which it is refreshed.",
        update_mode=PER_BROKER,
        effect=Effect.SASL,
    )
    sasl_login_refresh_window_jitter = Setting(
        DOUBLE, 0.05, "Random part of the time of a credential's refresh.", update_mode=PER_BROKER, effect=Effect.SASL
    )
    sasl_login_retry_backoff_max_ms = Setting(
        LONG, 10_000, "Longest pause between logins at an OAuth server.", effect=Effect.SASL
    )
    sasl_login_retry_backoff_ms = Setting(
        LONG, 100, "First pause between logins at an OAuth server.", effect=Effect.SASL
    )
    sasl_mechanism_controller_protocol = Setting(
        STRING, "GSSAPI", "SASL mechanism towards KRaft controllers.", refusal=NO_MECHANISM, effect=Effect.SASL
    )
    sasl_mechanism_inter_broker_protocol = Setting(
        STRING,
        "GSSAPI",
        "SASL mechanism that brokers use among themselves.",
        update_mode=PER_BROKER,
        effect=Effect.SASL,
    )
    sasl_oauthbearer_clock_skew_seconds = Setting(
        INT, 30, "Clock difference allowed in token times.", effect=Effect.SASL
    )
    sasl_oauthbearer_expected_audience: Setting[tuple[str, ...] | None] = Setting(
        LIST, None, "Audiences accepted in a token.", effect=Effect.SASL
    )
    sasl_oauthbearer_expected_issuer: Setting[str | None] = Setting(
        STRING, None, "Issuer expected in a token.", effect=Effect.SASL
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms = Setting(
        LONG, 3_600_000, "How often the issuer's keys are read.", effect=Effect.SASL
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms = Setting(
        LONG, 10_000, "Longest pause between attempts to read the issuer's keys.", effect=Effect.SASL
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms = Setting(
        LONG, 100, "First pause between attempts to read the issuer's keys.", effect=Effect.SASL
    )
    sasl_oauthbearer_jwks_endpoint_url: Setting[str | None] = Setting(
        STRING, None, "Where the issuer's keys are.", effect=Effect.SASL
    )
    sasl_oauthbearer_scope_claim_name = Setting(STRING, "scope", "Claim with a token's scope.", effect=Effect.SASL)
    sasl_oauthbearer_sub_claim_name = Setting(STRING, "sub", "Claim with a token's subject.", effect=Effect.SASL)
    sasl_oauthbearer_token_endpoint_url: Setting[str | None] = Setting(
        STRING, None, "Where tokens are issued.", effect=Effect.SASL
    )
    sasl_server_callback_handler_class: Setting[str | None] = Setting(
        CLASS, None, "Java class for a SASL server's mechanism.", effect=Effect.SASL
    )
    sasl_server_max_receive_size = Setting(INT, 524_288, "Largest SASL message accepted.", effect=Effect.SASL)
