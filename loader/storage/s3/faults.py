"""Explanations of S3 errors for users."""

from collections.abc import Callable
from functools import partial

from botocore.exceptions import ClientError, NoCredentialsError, PartialCredentialsError

from reelweave.loader.errors import MachineError, ObjectError, RunError
from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.remote.retry import is_transient, patience

_NO_LOGIN = ("ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "SignatureDoesNotMatch")
"""Credentials that are wrong or have run out, for every object."""

_DENIED = ("AccessDenied", "AllAccessDisabled", "401", "403", "Forbidden")


def code_of(error: ClientError) -> str:
    """Return the code of an S3 error, such as "NoSuchKey"; the HTTP status if the response has no body."""
    return error.response.get("Error", {}).get("Code", "")


def explain_error(
    error: Exception, uri: str, bucket: str, config: StorageConfig, *, reading: bool = False
) -> Exception:
    """Return the error to raise instead of ``error``, which is one of `FAULTS`.

    The text of ``error`` is not repeated: it may contain an endpoint as the environment spells it.

    Args:
        error: error of a request.
        uri: URI of the object.
        bucket: bucket of the object.
        config: configuration of the storage.
        reading: True for reads; only these can fail for a reason of one object.

    Returns:
        `FileNotFoundError` for a missing object; otherwise a `RunError` that names ``uri`` and the remedy. Of a read it
        is a `MachineError` where the network or the permissions of one object are at fault, and an `ObjectError` if
        neither a retry nor other permissions would help.
    """
    return _in_words(error, uri, bucket, config, _kind(error) if reading else RunError)


def _kind(error: Exception) -> Callable[[str], RunError]:
    """Return the kind of error to raise for a failed read."""
    code = code_of(error) if isinstance(error, ClientError) else ""
    if isinstance(error, NoCredentialsError | PartialCredentialsError) or code in _NO_LOGIN:
        return RunError
    if is_transient(error) or code in _DENIED:
        return partial(MachineError, lasts=True)
    return ObjectError


def _in_words(
    error: Exception, uri: str, bucket: str, config: StorageConfig, kind: Callable[[str], RunError]
) -> Exception:
    endpoint = f"the endpoint {config.endpoint_url}" if config.endpoint_url else "the S3 endpoint"
    # Answers of the server that say what to do.
    if isinstance(error, ClientError):
        code = code_of(error)
        reason = f"S3 answered {code}"
        if code in ("NoSuchKey", "404"):
            return FileNotFoundError(f"{uri} does not exist")
        if code == "NoSuchBucket":
            return kind(f"{uri}: there is no bucket {bucket} at {endpoint}; check its name and the endpoint")
        if code in _DENIED:
            return kind(
                f"{uri}: access to bucket {bucket} was denied; check the credentials (AWS_PROFILE, role) and"
                " that their policy allows s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject"
            )
        if code in _NO_LOGIN:
            return kind(f"{uri}: {reason}; renew or correct the AWS credentials (environment, profile, role)")
        if code in (
            "301",
            "PermanentRedirect",
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
        ):
            return kind(
                f"{uri}: bucket {bucket} lies in another region; set the region of the storage ({reason})"
            )
        if code in ("NotImplemented", "501"):
            return kind(
                f"{uri}: {endpoint} does not know this request ({reason}); needed are conditional writes (If-None-Match"
                " and If-Match of a PUT), which AWS, MinIO and Ceph have in their present versions"
            )
    elif isinstance(error, NoCredentialsError | PartialCredentialsError):
        return kind(
            f"{uri}: no AWS credentials found; set AWS_PROFILE or AWS_ACCESS_KEY_ID, or attach a role"
        )
    else:
        reason = type(error).__name__
    # The rest: faults that may pass and did not in any attempt, and faults for good.
    if is_transient(error):
        return kind(
            f"{uri}: gave up after {patience(config)}, the last ended in {reason};"
            f" check {endpoint} and the network, then run the same command again"
        )
    return kind(
        f"{uri}: the request failed for good ({reason}); check the bucket, {endpoint} and AWS settings"
    )
