"""The CloudFormation template: linted, deployed to a server, and asked what its roles may do."""

import ast
import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.s3server import s3_server

TEMPLATE = Path(__file__).parents[2] / "infra" / "aws" / "dataset-bucket.yaml"
PREFIX = "teams/video"
ROLES = ("CuratorRoleArn", "RemoverRoleArn", "TrainerRoleArn")

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
    return Stack(endpoint, "reelweave-data", DatasetPrefix=PREFIX)


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


def test_the_trainer_may_only_list_and_read(stack: Stack) -> None:
    role = "TrainerRoleArn"
    actions = {action for statement in stack.statements[role] for action in as_list(statement["Action"])}
    assert actions == {"s3:ListBucket", "s3:GetObject"}
    assert stack.allows(role, "s3:GetObject", key=f"{PREFIX}/clips-v1/shards/000000.tar")
    assert not stack.allows(role, "s3:GetObject", key="other/000000.tar")
    assert stack.allows(role, "s3:ListBucket", listed=f"{PREFIX}/")
    assert not stack.allows(role, "s3:ListBucket", listed="")


@pytest.mark.parametrize("role", ROLES)
def test_no_role_is_given_a_wildcard_beyond_the_keys_of_its_prefix(stack: Stack, role: str) -> None:
    arn = f"arn:aws:s3:::{stack.bucket}"
    for statement in stack.statements[role]:
        assert not any("*" in action for action in as_list(statement["Action"]))
        assert set(as_list(statement["Resource"])) <= {arn, f"{arn}/{PREFIX}/*"}
        assert not {"NotAction", "NotResource", "NotPrincipal"} & statement.keys()


def test_services_take_the_roles_unless_the_arn_of_a_role_is_given(endpoint: str, stack: Stack) -> None:
    def trusted(stack: Stack, role: str) -> Any:
        (statement,) = stack.role(role)["AssumeRolePolicyDocument"]["Statement"]
        assert set(as_list(statement["Action"])) == {"sts:AssumeRole", "sts:TagSession"}
        return statement["Principal"]

    assert trusted(stack, "CuratorRoleArn") == {"Service": "pods.eks.amazonaws.com"}
    assert trusted(stack, "RemoverRoleArn") == {"Service": "pods.eks.amazonaws.com"}
    assert trusted(stack, "TrainerRoleArn") == {"Service": "ec2.amazonaws.com"}
    profile = stack.client("iam").get_instance_profile(
        InstanceProfileName=stack.outputs["TrainerInstanceProfile"]
    )
    assert [role["Arn"] for role in profile["InstanceProfile"]["Roles"]] == [stack.outputs["TrainerRoleArn"]]

    arn = "arn:aws:iam::123456789012:role/cluster"
    other = Stack(endpoint, "by-arn", CuratorPrincipal=arn, RemoverPrincipal=arn, TrainerPrincipal=arn)
    assert trusted(other, "CuratorRoleArn") == {"AWS": arn}
    assert trusted(other, "RemoverRoleArn") == {"AWS": arn}
    assert trusted(other, "TrainerRoleArn") == {"AWS": arn}
    assert "TrainerInstanceProfile" not in other.outputs


def test_a_prefix_that_would_lock_both_roles_out_is_refused(template: dict[str, Any]) -> None:
    pattern = template["Parameters"]["DatasetPrefix"]["AllowedPattern"]
    assert re.fullmatch(pattern, PREFIX)
    for wrong in ("", f"{PREFIX}/", f"/{PREFIX}", "a//b", "a*"):
        assert not re.fullmatch(pattern, wrong), wrong
