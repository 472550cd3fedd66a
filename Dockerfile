# The service, the command line and KenLM's programs in one image.
#
#   docker build -t nbest-rescoring .
#
# Build arguments:
#   TORCH_SPEC    another torch than the one pinned in constraints.txt, such as torch==2.12.1
#   TORCH_INDEX   the address of a package index to take torch from, such as one with CPU builds only; without it
#                 PyPI's build is taken, which brings CUDA and is several gigabytes large
# Build secrets, both optional: pip_conf, a configuration file for pip; ca_bundle, certificates that it may name as
# /run/secrets/ca_bundle. Neither leaves a trace in the image.

# Empty. Replaced by a folder of wheels with --build-context wheels=DIR, it serves pip before any index.
FROM scratch AS wheels

FROM python:3.11-slim-bookworm AS toolchain
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ make \
        libboost-program-options-dev libboost-system-dev libboost-thread-dev \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_CONFIG_FILE=/run/secrets/pip_conf \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_NO_CACHE_DIR=1

# KenLM's programs and the Python environment do not need each other: these two stages build at the same time.
FROM toolchain AS kenlm
COPY scripts/build-kenlm.sh /src/
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle \
    python3 -m venv /opt/kenlm && KENLM_BOOST=system /src/build-kenlm.sh /opt/kenlm

FROM toolchain AS environment
ARG TORCH_SPEC=""
ARG TORCH_INDEX=""
WORKDIR /src
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY constraints.txt ./
# hadolint ignore=DL3013 # the version is in constraints.txt or TORCH_SPEC
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle --mount=type=bind,from=wheels,target=/wheels \
    pip install --find-links /wheels ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
        "${TORCH_SPEC:-$(grep '^torch==' constraints.txt)}" \
    && if [ -n "$TORCH_SPEC" ]; then sed -i '/^torch==/d' constraints.txt; fi
# Everything we depend on, before our own code: it changes less often. The packages are empty here.
COPY pyproject.toml README.md LICENSE ./
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle \
    mkdir models service clients && touch models/__init__.py service/__init__.py clients/__init__.py \
    && pip install -c constraints.txt '.[service,redis]'
COPY models models
COPY service service
COPY clients clients
RUN --mount=type=secret,id=pip_conf --mount=type=secret,id=ca_bundle \
    pip install --no-deps --force-reinstall .
COPY --from=kenlm /opt/kenlm/bin/lmplz /opt/kenlm/bin/build_binary /opt/kenlm/bin/query /opt/venv/bin/

FROM python:3.11-slim-bookworm
# A volume that is mounted here for the first time takes over the folder's owner: the trainer can write to /bundle, the
# service to /sessions.
RUN groupadd --gid 10001 nbest \
    && useradd --uid 10001 --gid nbest --home-dir /tmp --no-create-home --shell /usr/sbin/nologin nbest \
    && install -d -o nbest -g nbest /bundle /sessions
COPY --from=environment /opt/venv /opt/venv
WORKDIR /app
COPY examples/ljspeech examples/ljspeech
ENV PATH=/opt/venv/bin:$PATH \
    HOME=/tmp \
    NBEST_SESSION_STORE=/sessions/sessions.sqlite3 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
EXPOSE 8000
# Ready means that a real sentence was scored. Python stands in for curl, which the image does not have.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 8000, timeout=4); c.request('GET', '/health/ready'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["nbest"]
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8000"]
