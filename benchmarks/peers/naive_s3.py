"""The naive loop from S3 and back: GDAL reads through /vsis3/ as it does by default, boto3 puts the product.

Where the server is, and how it is spoken to, comes from the environment (AWS_*).
"""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import rasterio

from benchmarks.peers import naive

_client = boto3.client("s3")


def make(source: str, product: str) -> None:
    """`s3://` to `s3://`; what GDAL keeps of the source is forgotten when it is closed."""
    to = urlsplit(product)
    with tempfile.TemporaryDirectory() as folder:
        local = str(Path(folder) / "product.tif")
        with rasterio.Env(CPL_VSIL_CURL_NON_CACHED=f"/vsis3/{urlsplit(source).netloc}/"):
            naive.make(source, local)
        with open(local, "rb") as body:
            _client.put_object(Bucket=to.netloc, Key=to.path.lstrip("/"), Body=body)
