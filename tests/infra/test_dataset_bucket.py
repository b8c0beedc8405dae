"""The CloudFormation template: linted, deployed to a server, and asked what its roles may do."""

import ast
import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import boto3
import pytest
from botocore.exceptions import ClientError

from reelweave.loader.dataset import open_dataset
from reelweave.loader.storage import StorageConfig
from reelweave.pipelines.commands.train.train import train
from reelweave.pipelines.latents.run import make_latents
from tests.commands import reelweave
from tests.media import write_video
from tests.s3server import Exchange, FaultyProxy, s3_server
from tests.thorough import thorough
from tests.train.latents.latent_versions import run_config

TEMPLATE = Path(__file__).parents[2] / "infra" / "aws" / "dataset-bucket.yaml"
PREFIX = "teams/video"
RUNS = "teams/runs"
ROLES = ("CuratorRoleArn", "RemoverRoleArn", "TrainerRoleArn", "ReaderRoleArn")

pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..S3..BucketPolicy")


class Stack:
    """A deployed stack: its outputs, and what IAM says of its roles."""

    def __init__(self, endpoint: str, name: str, **parameters: str) -> None:
        self.client = lambda service: boto3.session.Session().client(service, endpoint_url=endpoint)
        cloud = self.client("cloudformation")
        cloud.create_stack(
            StackName=name,
            TemplateBody=TEMPLATE.read_text(),
            Capabilities=["CAPABILITY_IAM"],
            Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()],
        )
        stack = cloud.describe_stacks(StackName=name)["Stacks"][0]
        assert stack["StackStatus"] == "CREATE_COMPLETE"
        self.outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
        self.bucket = self.outputs["BucketName"]
        self.statements = {role: self._statements(role) for role in ROLES}

    def role(self, output: str) -> dict[str, Any]:
        name = self.outputs[output].rsplit("/", 1)[-1]
        return self.client("iam").get_role(RoleName=name)["Role"]

    def _statements(self, output: str) -> list[dict[str, Any]]:
        """All that a role's policies say."""
        iam, name = self.client("iam"), self.role(output)["RoleName"]
        assert iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"] == []
        names = iam.list_role_policies(RoleName=name)["PolicyNames"]
        documents = [iam.get_role_policy(RoleName=name, PolicyName=each)["PolicyDocument"] for each in names]
        # moto keeps an inline policy that CloudFormation makes as the text of a Python dict.
        return [statement for each in documents for statement in ast.literal_eval(each)["Statement"]]

    def allows(self, output: str, action: str, key: str | None = None, listed: str | None = None) -> bool:
        """Whether a role may do this to an object of the bucket, or to the bucket while it lists a prefix."""
        resource = f"arn:aws:s3:::{self.bucket}" + (f"/{key}" if key else "")
        for statement in self.statements[output]:
            assert statement["Effect"] == "Allow"
            narrowed = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix")
            if (
                any(fnmatchcase(action, each) for each in as_list(statement["Action"]))
                and any(fnmatchcase(resource, each) for each in as_list(statement["Resource"]))
                and (narrowed is None or any(fnmatchcase(listed or "", each) for each in as_list(narrowed)))
            ):
                return True
        return False


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture
def template() -> dict[str, Any]:
    """The template as written: moto's CloudFormation makes nothing of most of a bucket's properties."""
    from cfnlint.decode import decode

    return json.loads(json.dumps(decode(str(TEMPLATE))[0]))


@pytest.fixture
def bucket(template: dict[str, Any]) -> dict[str, Any]:
    return template["Resources"]["Bucket"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def stack(endpoint: str) -> Stack:
    return Stack(endpoint, "reelweave-data", DatasetPrefix=PREFIX, RunPrefix=RUNS)


@thorough
def test_cfn_lint_finds_nothing_to_say() -> None:
    from cfnlint.api import lint_file

    assert [str(match) for match in lint_file(TEMPLATE)] == []


def test_the_deployed_bucket_encrypts_what_is_put_into_it(stack: Stack) -> None:
    s3 = stack.client("s3")
    rules = s3.get_bucket_encryption(Bucket=stack.bucket)["ServerSideEncryptionConfiguration"]["Rules"]
    assert [rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] for rule in rules] == ["AES256"]
    assert s3.put_object(Bucket=stack.bucket, Key="a", Body=b"b")["ServerSideEncryption"] == "AES256"


def test_the_bucket_is_closed_to_the_public_versioned_and_outlives_its_stack(bucket: dict[str, Any]) -> None:
    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    properties = bucket["Properties"]
    assert properties["PublicAccessBlockConfiguration"] == {
        "BlockPublicAcls": True,
        "BlockPublicPolicy": True,
        "IgnorePublicAcls": True,
        "RestrictPublicBuckets": True,
    }
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert properties["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}


def test_old_versions_and_abandoned_uploads_expire_and_data_does_not(bucket: dict[str, Any]) -> None:
    rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert {rule.pop("Status") for rule in rules} == {"Enabled"}
    does = {key: value for rule in rules for key, value in rule.items() if key != "Id"}
    assert does == {
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        "NoncurrentVersionExpiration": {"NoncurrentDays": {"Ref": "NoncurrentVersionDays"}},
        "ExpiredObjectDeleteMarker": True,
    }


def test_everything_is_denied_without_tls(template: dict[str, Any]) -> None:
    properties = template["Resources"]["BucketPolicy"]["Properties"]
    assert properties["Bucket"] == {"Ref": "Bucket"}
    (statement,) = properties["PolicyDocument"]["Statement"]
    assert statement == {
        "Sid": "TlsOnly",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": [{"Fn::GetAtt": ["Bucket", "Arn"]}, {"Fn::Sub": "${Bucket.Arn}/*"}],
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }


def test_the_curator_may_do_its_work_below_the_prefix_only(stack: Stack) -> None:
    role = "CuratorRoleArn"
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
        assert stack.allows(role, action, key=f"{PREFIX}/clips-v1/manifest.json")
        assert not stack.allows(role, action, key="other/manifest.json")
        assert not stack.allows(role, action, key=f"{PREFIX}-2/manifest.json")
    assert stack.allows(role, "s3:ListBucket", listed=f"{PREFIX}/clips-v1/")
    assert not stack.allows(role, "s3:ListBucket", listed="")
    assert not stack.allows(role, "s3:ListBucket", listed=PREFIX), "would list PREFIX-2 too"
    assert stack.allows(role, "s3:ListBucketMultipartUploads")
    for action in ("s3:DeleteObjectVersion", "s3:PutObjectAcl"):
        assert not stack.allows(role, action, key=f"{PREFIX}/clips-v1/manifest.json")
    for action in ("s3:DeleteBucket", "s3:PutBucketPolicy", "s3:PutLifecycleConfiguration"):
        assert not stack.allows(role, action)


def test_only_the_remover_reaches_older_versions_of_what_it_removes(stack: Stack) -> None:
    for role in ROLES:
        removes = role == "RemoverRoleArn"
        assert stack.allows(role, "s3:DeleteObjectVersion", key=f"{PREFIX}/clips-v1/a.tar") == removes
        assert stack.allows(role, "s3:ListBucketVersions", listed=f"{PREFIX}/clips-v1/") == removes
        assert not stack.allows(role, "s3:DeleteObjectVersion", key="other/a.tar")
        assert not stack.allows(role, "s3:ListBucketVersions", listed="")
    # A take-down writes what is left again, so the remover does all that the curator does.
    mine, curators = (
        {action for each in stack.statements[role] for action in as_list(each["Action"])}
        for role in ("RemoverRoleArn", "CuratorRoleArn")
    )
    assert mine - curators == {"s3:DeleteObjectVersion", "s3:ListBucketVersions"}
    assert curators < mine


def test_the_reader_may_only_list_and_read(stack: Stack) -> None:
    role = "ReaderRoleArn"
    actions = {action for statement in stack.statements[role] for action in as_list(statement["Action"])}
    assert actions == {"s3:ListBucket", "s3:GetObject"}
    assert stack.allows(role, "s3:GetObject", key=f"{PREFIX}/clips-v1/shards/000000.tar")
    assert stack.allows(role, "s3:ListBucket", listed=f"{PREFIX}/")
    for other in ("other", RUNS):
        assert not stack.allows(role, "s3:GetObject", key=f"{other}/000000.tar")
        assert not stack.allows(role, "s3:ListBucket", listed=f"{other}/")
    assert not stack.allows(role, "s3:ListBucket", listed="")


def test_the_trainer_reads_datasets_and_writes_runs(stack: Stack) -> None:
    role = "TrainerRoleArn"
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
        assert stack.allows(role, action, key=f"{RUNS}/wan/checkpoints/step-000500/state.json")
        assert stack.allows(role, action, key=f"{PREFIX}/clips-v1/a.tar") == (action == "s3:GetObject")
        assert not stack.allows(role, action, key="other/a.tar")
    for prefix in (PREFIX, RUNS):
        assert stack.allows(role, "s3:ListBucket", listed=f"{prefix}/")
    assert not stack.allows(role, "s3:ListBucket", listed="")
    assert not stack.allows(role, "s3:DeleteObjectVersion", key=f"{RUNS}/a.tar")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_is_given_a_wildcard_beyond_the_keys_of_its_prefix(stack: Stack, role: str) -> None:
    arn = f"arn:aws:s3:::{stack.bucket}"
    for statement in stack.statements[role]:
        assert not any("*" in action for action in as_list(statement["Action"]))
        own = {f"{arn}/{PREFIX}/*"} | ({f"{arn}/{RUNS}/*"} if role == "TrainerRoleArn" else set())
        assert set(as_list(statement["Resource"])) <= {arn, *own}
        assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.keys()


@thorough
def test_services_take_the_roles_unless_the_arn_of_a_role_is_given(endpoint: str, stack: Stack) -> None:
    def trusted(stack: Stack, role: str) -> Any:
        (statement,) = stack.role(role)["AssumeRolePolicyDocument"]["Statement"]
        assert set(as_list(statement["Action"])) == {"sts:AssumeRole", "sts:TagSession"}
        return statement["Principal"]

    assert trusted(stack, "CuratorRoleArn") == {"Service": "pods.eks.amazonaws.com"}
    assert trusted(stack, "RemoverRoleArn") == {"Service": "pods.eks.amazonaws.com"}
    assert trusted(stack, "TrainerRoleArn") == {"Service": "ec2.amazonaws.com"}
    assert trusted(stack, "ReaderRoleArn") == {"Service": "ec2.amazonaws.com"}
    profile = stack.client("iam").get_instance_profile(
        InstanceProfileName=stack.outputs["TrainerInstanceProfile"]
    )
    assert [role["Arn"] for role in profile["InstanceProfile"]["Roles"]] == [stack.outputs["TrainerRoleArn"]]

    arn = "arn:aws:iam::123456789012:role/cluster"
    taken = {f"{who}Principal": arn for who in ("Curator", "Remover", "Trainer", "Reader")}
    other = Stack(endpoint, "by-arn", **taken)
    assert trusted(other, "CuratorRoleArn") == {"AWS": arn}
    assert trusted(other, "RemoverRoleArn") == {"AWS": arn}
    assert trusted(other, "TrainerRoleArn") == {"AWS": arn}
    assert trusted(other, "ReaderRoleArn") == {"AWS": arn}
    assert "TrainerInstanceProfile" not in other.outputs
    assert "RayHeadInstanceProfileArn" not in other.outputs


@thorough
def test_on_ec2_the_head_of_ray_launches_nodes_that_are_curators_and_no_others(endpoint: str) -> None:
    stack = Stack(endpoint, "on-ec2", CuratorPrincipal="ec2.amazonaws.com")
    roles = {}
    for output in ("CuratorInstanceProfileArn", "RayHeadInstanceProfileArn"):
        name = stack.outputs[output].rsplit("/", 1)[-1]
        (roles[output],) = stack.client("iam").get_instance_profile(InstanceProfileName=name)[
            "InstanceProfile"
        ]["Roles"]
    assert roles["CuratorInstanceProfileArn"]["Arn"] == stack.outputs["CuratorRoleArn"]
    stack.outputs["head"] = roles["RayHeadInstanceProfileArn"]["Arn"]
    head, curator = stack._statements("head"), stack._statements("CuratorRoleArn")
    assert [one for one in curator if one not in head] == []
    more = [one for one in head if one not in curator]
    (passes,) = (one for one in more if one["Action"] == "iam:PassRole")
    assert passes["Resource"] == stack.outputs["CuratorRoleArn"]
    (ends,) = (one for one in more if "ec2:TerminateInstances" in as_list(one["Action"]))
    assert ends["Condition"] == {"StringEquals": {"aws:ResourceTag/ray-cluster-name": "reelweave"}}
    assert all(":Describe" in action for one in more if one["Resource"] == "*" for action in one["Action"])


def test_a_prefix_that_would_lock_the_roles_out_is_refused(template: dict[str, Any]) -> None:
    for name in ("DatasetPrefix", "RunPrefix"):
        pattern = template["Parameters"][name]["AllowedPattern"]
        assert re.fullmatch(pattern, PREFIX)
        for wrong in ("", f"{PREFIX}/", f"/{PREFIX}", "a//b", "a*"):
            assert not re.fullmatch(pattern, wrong), wrong


@pytest.fixture
def judged(endpoint: str, stack: Stack) -> Iterator[Callable[[str], Any]]:
    """Clients of roles, of a server that asks IAM before it does anything."""
    iam, sts = stack.client("iam"), stack.client("sts")
    taken = {}
    for role in ROLES:
        name = stack.role(role)["RoleName"]
        for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
            # As JSON: moto keeps what CloudFormation made as a text that its own IAM cannot read.
            document = ast.literal_eval(
                iam.get_role_policy(RoleName=name, PolicyName=policy)["PolicyDocument"]
            )
            kept = [each for each in document["Statement"] if "Condition" not in each]  # moto knows none
            iam.put_role_policy(
                RoleName=name,
                PolicyName=policy,
                PolicyDocument=json.dumps(document | {"Statement": kept}),
            )
        session = sts.assume_role(RoleArn=stack.outputs[role], RoleSessionName="test")["Credentials"]
        taken[role] = {
            "aws_access_key_id": session["AccessKeyId"],
            "aws_secret_access_key": session["SecretAccessKey"],
            "aws_session_token": session["SessionToken"],
        }
    reset = f"{endpoint}/moto-api/reset-auth"
    as_text = {"Content-Type": "text/plain"}
    urlopen(Request(reset, b"0", as_text, method="POST")).close()
    try:
        yield lambda role: boto3.session.Session(**taken[role]).client("s3", endpoint_url=endpoint)
    finally:
        urlopen(Request(reset, b"inf", as_text, method="POST")).close()


def may(call: Callable[..., Any], **words: Any) -> bool:
    """Make a call, and return whether IAM let it through."""
    try:
        call(**words)
    except ClientError as error:
        if error.response["Error"]["Code"] == "AccessDenied":
            return False
        raise
    return True


@thorough
def test_a_server_that_asks_iam_lets_the_roles_do_their_work_and_nothing_else(
    stack: Stack, judged: Callable[[str], Any]
) -> None:
    """Allowed and denied calls by the roles' own credentials; rules that name a condition are read above."""
    writes = {"CuratorRoleArn": {PREFIX}, "RemoverRoleArn": {PREFIX}, "TrainerRoleArn": {RUNS}}
    for role in ROLES:
        s3 = judged(role)
        for prefix in (PREFIX, RUNS, "other"):
            here = {"Bucket": stack.bucket, "Key": f"{prefix}/a"}
            writer = prefix in writes.get(role, set())
            assert may(s3.put_object, **here, Body=b"a") == writer, (role, prefix)
            read = writer or (role in ("TrainerRoleArn", "ReaderRoleArn") and prefix == PREFIX)
            assert may(s3.get_object, **here) == read, (role, prefix)
            assert may(s3.delete_object, **here) == writer, (role, prefix)
            if writer:
                s3.put_object(**here, Body=b"a")  # for those who read it
        for call in (s3.get_bucket_policy, s3.delete_bucket, s3.delete_bucket_policy):
            assert not may(call, Bucket=stack.bucket), role


Asked = tuple[str, str | None, str | None]


def asked(exchange: Exchange, bucket: str) -> list[Asked]:
    """What IAM is asked of a request: action, key, and the prefix that is listed.

    S3 answers 404 for a missing key to those who may list a prefix that the key has, and 403 to others.
    """
    method, target = exchange.line.split(" ", 1)
    parts = urlsplit(target)
    named, _, key = unquote(parts.path).lstrip("/").partition("/")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    assert named == bucket
    if exchange.named:
        deleted = ElementTree.fromstring(exchange.named).iterfind("{*}Object")
        found = [(one.findtext("{*}Key"), one.findtext("{*}VersionId")) for one in deleted]
        assert found
        return [("s3:DeleteObjectVersion" if old else "s3:DeleteObject", key, None) for key, old in found]
    if not key:
        assert method == "GET", exchange.line
        if "uploads" in query:
            return [("s3:ListBucketMultipartUploads", None, None)]
        action = "s3:ListBucketVersions" if "versions" in query else "s3:ListBucket"
        return [(action, None, query.get("prefix", ""))]
    if method == "DELETE":
        single = "s3:DeleteObjectVersion" if "versionId" in query else "s3:DeleteObject"
        return [("s3:AbortMultipartUpload" if "uploadId" in query else single, key, None)]
    return [({"GET": "s3:GetObject", "HEAD": "s3:GetObject"}.get(method, "s3:PutObject"), key, None)]


@thorough
def test_the_roles_allow_every_request_of_the_commands_they_are_for(
    endpoint: str, stack: Stack, tmp_path: Path
) -> None:
    datasets, runs = f"s3://{stack.bucket}/{PREFIX}", f"s3://{stack.bucket}/{RUNS}"
    clip = write_video(tmp_path / "raw/a.mp4", (40, 45, 42, 44))
    quick = ["--set", "run.runner=sequential", "--set", "run.isolate=false", "--set", "spans.min_clip_s=1"]
    with FaultyProxy(endpoint) as proxy:
        reach = ["--endpoint-url", proxy.url]

        def requests_of(role: str, command: Callable[[], Any]) -> list[Asked]:
            before = len(proxy.exchanges)
            command()
            found = [one for exchange in proxy.exchanges[before:] for one in asked(exchange, stack.bucket)]
            denied = [each for each in found if not stack.allows(role, *each)]
            assert not denied, f"{role}: {denied}"
            return found

        def done(*words: object) -> Callable[[], None]:
            def run() -> None:
                ended = reelweave(*words)
                assert ended.returncode == 0, ended.stderr

            return run

        clips = f"{datasets}/clips"
        curated = done("curate", clip, "--out", clips, *quick, "--set", f"storage.endpoint_url={proxy.url}")
        assert ("s3:PutObject", f"{PREFIX}/clips/manifest.json", None) in requests_of(
            "CuratorRoleArn", curated
        )
        requests_of("CuratorRoleArn", done("report", clips, "--set", f"storage.endpoint_url={proxy.url}"))
        for look in (["verify", clips], ["status", clips], ["show", clips, clip]):
            assert requests_of("ReaderRoleArn", done(*look, *reach))
        storage = StorageConfig(endpoint_url=proxy.url)
        config = run_config(clips, tmp_path / "run", storage=storage, checkpoints=f"{runs}/first")
        written = requests_of("TrainerRoleArn", lambda: train(config))
        assert any(
            action == "s3:PutObject" and key.startswith(f"{RUNS}/first") for action, key, _ in written if key
        )
        latents = run_config(clips, tmp_path / "unused", storage=storage)
        requests_of("TrainerRoleArn", lambda: make_latents(clips, f"{runs}/latents", latents, lambda _: None))
        requests_of("ReaderRoleArn", lambda: open_dataset(clips, storage))
        requests_of("RemoverRoleArn", done("remove", clips, "--source", clip, *reach))
