"""A real S3-compatible server on loopback that honours conditional puts, with its settings in the environment."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from unittest import mock

KEY, SECRET = "AKIAFAKEFAKEFAKE0000", "secret-that-must-not-be-seen-0123456789"


def settings(address: str) -> dict[str, str]:
    """Keys and address where every S3 client looks for them."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
    }


@contextlib.contextmanager
def s3_server(bucket: str = "corpora") -> Iterator[str]:
    """Gives the URL of a bucket; keys and address are where every S3 client looks for them: in the environment."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    s3fs.S3FileSystem.clear_instance_cache()  # else the clients of an earlier server in this process go on asking it
    with mock.patch.dict(os.environ, settings(f"http://{host}:{port}")):
        boto3.client("s3").create_bucket(Bucket=bucket)
        try:
            yield f"s3://{bucket}"
        finally:
            server.stop()
