# An image of the service: `streamjoin serve` with the embedded engine, without Java.
# Build it from the repository's root: docker build -f deploy/service.Dockerfile -t streamjoin-service .
# Run it: docker run -p 8765:8765 -v ./streamjoin.toml:/etc/streamjoin/streamjoin.toml:ro -v streamjoin:/var/lib/streamjoin \
#         -e STREAMJOIN_SERVICE__TOKEN streamjoin-service
ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON}
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir '/src[service,kafka,s3]' && rm -rf /src
RUN useradd --uid 185 --gid 0 --home-dir /var/lib/streamjoin streamjoin \
    && mkdir -p /opt/cache /etc/streamjoin /var/lib/streamjoin \
    && chown -R 185:0 /opt/cache /var/lib/streamjoin
ENV XDG_CACHE_HOME=/opt/cache \
    STREAMJOIN_SERVICE__HOST=0.0.0.0 \
    STREAMJOIN_SERVICE__LOG=json \
    STREAMJOIN_ENGINE__CHECKPOINT=/var/lib/streamjoin/data
USER 185
WORKDIR /var/lib/streamjoin
# Kernels are compiled for the processor of the machine that builds the image; others compile them again.
RUN streamjoin warmup
VOLUME /var/lib/streamjoin
EXPOSE 8765
# The process has ten seconds to end after SIGTERM, as Docker gives it.
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8765/api/v1/health', timeout=5)"]
ENTRYPOINT ["streamjoin", "serve"]
CMD ["/etc/streamjoin/streamjoin.toml"]
