# The library and its laboratory on a CPU: docker build -t gradwire . && docker run --rm gradwire
# The smaller build of torch for CPUs: --build-arg TORCH_INDEX=... with the index that pytorch.org names for it.
#
# On emulated links, which need namespaces of their own and the right to mount in them:
#   docker run --rm --cap-add NET_ADMIN --cap-add SYS_ADMIN --security-opt apparmor=unconfined gradwire \
#     netlab run --link 100mbit --workers 2 -- python examples/gpt.py
FROM python:3.11-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG TORCH_INDEX=
RUN python -m venv /opt/gradwire \
    && /opt/gradwire/bin/pip install --no-cache-dir ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} torch \
    && /opt/gradwire/bin/pip install --no-cache-dir . ./lab

FROM python:3.11-slim-bookworm
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends iproute2 \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/gradwire /opt/gradwire
COPY examples /work/examples
ENV PATH=/opt/gradwire/bin:$PATH OMP_NUM_THREADS=1
WORKDIR /work
ENTRYPOINT ["gradwire"]
CMD ["demo"]
