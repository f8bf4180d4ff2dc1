"""SASL."""

from __future__ import annotations

from config.definitions import ConfigKeys, Effect, Setting
from config.vocabulary import (
    CLASS,
    DOUBLE,
    INT,
    LIST,
    LONG,
    NO_KINIT,
    NO_MECHANISM,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
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
