locals {
  own = var.network == "own"

  # Networks, firewall rules and tags belong to the whole project, so their name holds the region, in six digits.
  name    = "failover-${var.name}-${substr(sha1(var.region), 0, 6)}"
  network = local.own ? google_compute_network.own[0].id : data.google_compute_network.default[0].id

  # At most 30 characters. The last part of the name is the job's id; the digits tell name and region.
  account_id = join("-", [
    "fo", substr(regex("[^-]+$", var.name), 0, 16), substr(sha1("${var.name}/${var.region}"), 0, 6)
  ])
}

# Network: the project's default network, or an own one with one subnetwork. Both reach the internet, both are IPv4.

data "google_compute_network" "default" {
  count   = local.own ? 0 : 1
  project = var.project
  name    = "default"
}

data "google_compute_subnetwork" "default" {
  count   = local.own ? 0 : 1
  project = var.project
  region  = var.region
  name    = "default"
}

resource "google_compute_network" "own" {
  count                   = local.own ? 1 : 0
  project                 = var.project
  name                    = local.name
  description             = "Machines of ${var.name} in ${var.region}"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "own" {
  #checkov:skip=CKV_GCP_26:Flow logs cost money for as long as the substrate waits; nothing can connect to these machines
  #checkov:skip=CKV_GCP_76:The network has no IPv6

  count                    = local.own ? 1 : 0
  project                  = var.project
  region                   = var.region
  name                     = local.name
  description              = "Machines of ${var.name}"
  network                  = google_compute_network.own[0].id
  ip_cidr_range            = var.subnet_cidr
  private_ip_google_access = true
}

# Firewall: in from nowhere. The default network lets SSH in from anywhere at priority 65534; a lower number wins.

resource "google_compute_firewall" "closed" {
  project       = var.project
  name          = "${local.name}-deny"
  description   = "Machines of ${var.name}: in from nowhere"
  network       = local.network
  direction     = "INGRESS"
  priority      = 100
  source_ranges = ["0.0.0.0/0"]
  target_tags   = [local.name]

  deny {
    protocol = "all"
  }
}

resource "google_compute_firewall" "ssh" {
  count         = var.ssh_cidr == null ? 0 : 1
  project       = var.project
  name          = "${local.name}-ssh"
  description   = "Machines of ${var.name}: SSH for the operator"
  network       = local.network
  direction     = "INGRESS"
  priority      = 90
  source_ranges = [var.ssh_cidr]
  target_tags   = [local.name]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

# Service account: the job's prefix in the bucket, and nothing else.

resource "google_service_account" "node" {
  count                        = var.service_account == null ? 1 : 0
  project                      = var.project
  account_id                   = local.account_id
  display_name                 = "failover-${var.name}"
  description                  = "Machines of ${var.name} in ${var.region}: the job's prefix in its bucket"
  create_ignore_already_exists = true
}

resource "google_storage_bucket_iam_member" "store" {
  count  = var.service_account == null && var.bucket != null ? 1 : 0
  bucket = var.bucket
  role   = "roles/storage.objectUser"
  member = google_service_account.node[0].member

  # An object is told by its name. A listing is asked of the bucket, so it is told by the prefix that it asks for.
  condition {
    title       = "failover-${var.name}"
    description = "Objects of the job alone"
    expression = join(" || ", [
      "resource.name.startsWith('projects/_/buckets/${var.bucket}/objects/${var.prefix}/')",
      "api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith('${var.prefix}/')",
    ])
  }

  lifecycle {
    precondition {
      condition     = var.prefix != ""
      error_message = "With a bucket goes the prefix of the job in it: the account must not reach other jobs."
    }
  }
}
