# syntax=docker/dockerfile:1
# The image of the operator, the same as that of `make image`: from the locks of this source, without a shell.
#
#   docker build -t localhost/skysail:0.1.0 .
ARG BUILDER=debian:12-slim
# An empty base. A distroless one serves as well: nothing of it is needed.
ARG BASE=scratch

FROM ${BUILDER} AS build
ARG IMAGE=skysail
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends ca-certificates make python3 python3-venv
WORKDIR /source
COPY . .
# The time of all files, so that the same source gives the same image.
ARG SOURCE_DATE_EPOCH=0
RUN scripts/bootstrap python3 .venv && .venv/bin/python -m scripts.build_image ${IMAGE} --root /root-of-the-image

FROM ${BASE} AS program
COPY --from=build /root-of-the-image/ /
ENV PATH=/opt/skysail/bin:/usr/bin \
    PYTHONPATH=/opt/skysail \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    LANG=C.UTF-8
USER 65532:65532
WORKDIR /home/skysail
ENTRYPOINT ["skysail"]
