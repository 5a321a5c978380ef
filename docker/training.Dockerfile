# A training environment on top of the node's image: numpy and one script here, PyTorch and your code in yours.
#   docker build --file docker/training.Dockerfile --tag digits examples
ARG IMAGE=gpu-failover:latest
# hadolint ignore=DL3006
FROM ${IMAGE}
USER 0
# The secrets are optional, as in docker/Dockerfile.
RUN --mount=type=secret,id=pipconf,target=/run/secrets/pip.conf \
    --mount=type=secret,id=cabundle,target=/run/secrets/ca.crt \
    if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi; \
    if [ -s /run/secrets/ca.crt ]; then export PIP_CERT=/run/secrets/ca.crt; fi; \
    pip install --no-cache-dir numpy==2.2.6
COPY train_digits.py /opt/training/
COPY data /opt/training/data/
USER 10001
