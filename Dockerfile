# `dear serve` on a CPU, with or without the page:
#   docker build -t dear .
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/runs/pets:/model:ro" -v dear-cache:/cache dear
#   docker run -p 127.0.0.1:8000:8000 -v "$PWD/runs/pets:/model:ro" -v dear-cache:/cache dear serve /model --page --host 0.0.0.0 --port 8000
FROM python:3.13-slim AS build
RUN python -m venv /opt/dear
ENV PATH=/opt/dear/bin:$PATH
# The CPU builds of PyTorch have a tenth of the size; they change less often than the sources.
COPY constraints.txt /
RUN pip install --no-cache-dir --constraint /constraints.txt --index-url https://download.pytorch.org/whl/cpu torch torchvision
COPY . /src
RUN pip install --no-cache-dir --constraint /constraints.txt "/src[serve,gallery]"

FROM python:3.13-slim
RUN useradd --uid 1000 --create-home dear && install --directory --owner dear /cache
COPY --from=build /opt/dear /opt/dear
ENV PATH=/opt/dear/bin:$PATH HF_HOME=/cache PYTHONUNBUFFERED=1
USER 1000
WORKDIR /home/dear
VOLUME /cache
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=300s \
  CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
ENTRYPOINT ["dear"]
CMD ["serve", "/model", "--host", "0.0.0.0", "--port", "8000"]
