# A model behind HTTP, on the CPU, as a user without rights, on a file system that cannot be written.
#
#   docker build -t vitreous .
#   docker run --read-only --cap-drop ALL --stop-timeout 30 -p 127.0.0.1:8000:8000 -v ./runs/demo:/model:ro \
#     -e VITREOUS_TOKEN vitreous
FROM python:3.12-slim-bookworm AS build

WORKDIR /source
RUN python -m venv /opt/vitreous
ENV PATH=/opt/vitreous/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY pyproject.toml constraints.txt README.md LICENSE ./
# The CPU build of torch comes from an index of its own; everything else from PyPI, at the versions of constraints.txt.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
COPY src ./src
RUN pip install -c constraints.txt ".[serve,jpeg,export]"

FROM python:3.12-slim-bookworm

COPY --from=build /opt/vitreous /opt/vitreous
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin vitreous
ENV PATH=/opt/vitreous/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/nonexistent \
    MPLCONFIGDIR=/nonexistent
USER 10001:10001
WORKDIR /
EXPOSE 8000
STOPSIGNAL SIGTERM
# The probe runs inside, so it asks under a name that is always allowed.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# 0.0.0.0 is needed inside a container, so a token is too: VITREOUS_TOKEN, or --token-file with a mounted secret.
ENTRYPOINT ["vitreous", "serve", "--address", "0.0.0.0", "--port", "8000", "--no-open"]
CMD ["/model"]
