# The server with the small English model inside. CPU by default; for an NVIDIA GPU:
#   docker build --build-arg DEVICE=cuda -t tickscribe . && docker run --gpus all -p 7860:7860 tickscribe
FROM python:3.12-slim

ARG DEVICE=cpu
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY app app
COPY static static
# The default torch wheel for Linux brings CUDA along; PyTorch's CPU index has one of a tenth of the size.
RUN if [ "$DEVICE" = cpu ]; then \
        pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu 'torch>=2.6,<2.14'; \
    fi \
    && pip install --no-cache-dir '.[tiny-en]' \
    && useradd --create-home tickscribe

USER tickscribe
WORKDIR /home/tickscribe
EXPOSE 7860
HEALTHCHECK --start-period=60s --interval=15s --timeout=3s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/healthz', timeout=2)"]
ENTRYPOINT ["tickscribe"]
CMD ["serve", "--host", "0.0.0.0"]
