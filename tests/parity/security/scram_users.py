"""AlterUserScramCredentials and DescribeUserScramCredentials."""

from __future__ import annotations

from protocol.messages.security import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest
from tests.parity.security.subject import SaslSubject, sasl_scenario

Deletion = AlterUserScramCredentialsRequest.ScramCredentialDeletion
Upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion


def upsertion(
    user: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = b"salt", salted: bytes = b"salted"
) -> Upsertion:
    return Upsertion(name=user, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted)


def alter(b: SaslSubject, *changes: Deletion | Upsertion) -> None:
    """The users of the answer are unordered."""
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in changes if isinstance(each, Deletion)],
        upsertions=[each for each in changes if isinstance(each, Upsertion)],
    )
    answer = b.quietly(request, 0)
    b.note("AlterUserScramCredentials", {each.user: (each.error_code, each.error_message) for each in answer.results})


def describe(b: SaslSubject, *users: str) -> None:
    """Users and their mechanisms are unordered."""
    names = [DescribeUserScramCredentialsRequest.UserName(name=user) for user in users]
    answer = b.quietly(DescribeUserScramCredentialsRequest(users=names), 0)
    b.note("DescribeUserScramCredentials", (answer.error_code, answer.error_message))
    results = {}
    for each in answer.results:
        infos = sorted((info.mechanism, info.iterations) for info in each.credential_infos)
        results[each.user] = (each.error_code, each.error_message, infos)
    b.note("users", results)


@sasl_scenario
def set_and_removed(b: SaslSubject) -> None:
    alter(b, upsertion("a"))
    describe(b, "a")
    alter(b, upsertion("a", 2, 16_384), upsertion("a", 1, 8192), upsertion("\u00e4 /%"))
    describe(b, "a", "\u00e4 /%")
    alter(b, Deletion(name="a", mechanism=1))
    describe(b, "a")
    alter(b, Deletion(name="a", mechanism=1))
    alter(b, Deletion(name="a", mechanism=2), Deletion(name="\u00e4 /%", mechanism=1))
    describe(b, "a", "\u00e4 /%", "nobody")


@sasl_scenario
def changes_that_are_refused(b: SaslSubject) -> None:
    for iterations in (0, -1, 4095, 4096, 16_384, 16_385, 2**31 - 1):
        alter(b, upsertion("refused", 1, iterations))
    for mechanism in (0, 3, -1):
        alter(b, upsertion("refused", mechanism))
        alter(b, Deletion(name="refused", mechanism=mechanism))
        alter(b, upsertion("refused", mechanism, 1))
    alter(b, upsertion(""))
    alter(b, Deletion(name="", mechanism=1))
    alter(b, upsertion("", 0))
    alter(b)
    alter(b, Deletion(name="nobody", mechanism=1))
    alter(b, upsertion("refused", salt=b""))
    alter(b, upsertion("refused", salted=b""))


@sasl_scenario
def several_changes_of_one_user(b: SaslSubject) -> None:
    alter(b, upsertion("twice"), upsertion("twice"))
    alter(b, upsertion("twice"), Deletion(name="twice", mechanism=1))
    alter(b, Deletion(name="twice", mechanism=1), Deletion(name="twice", mechanism=1))
    alter(b, upsertion("twice"), upsertion("twice", 2, 1), upsertion("another"))
    alter(b, upsertion("twice"), Deletion(name="twice", mechanism=2), upsertion("another"))
    alter(b, upsertion("twice"), upsertion("twice", 0), upsertion("twice"))
    describe(b, "twice", "another")
    describe(b, "twice", "twice", "another")
    describe(b, "", "")
