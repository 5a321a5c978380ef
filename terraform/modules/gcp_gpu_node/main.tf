locals {
  hyperdisk_only = can(regex("^(a3-ultragpu|a4|a4x|g4)-", var.machine_type))
  disk_type      = coalesce(var.disk_type, local.hyperdisk_only ? "hyperdisk-balanced" : "pd-balanced")

  adopting = !var.autodl_available && var.adopted_instance_id != null
  adopted = local.adopting ? regex(
    "^projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instances/(?P<name>[^/]+)$", var.adopted_instance_id
  ) : { project = null, zone = null, name = null }
}

# The adopted machine must exist. Once it is gone the provider says "projects/... not found" here, and a plan that would
# buy another ends: set autodl_available = true.
data "google_compute_instance" "adopted" {
  count   = local.adopting ? 1 : 0
  project = local.adopted.project
  zone    = local.adopted.zone
  name    = local.adopted.name
}

resource "google_compute_instance" "gpu" {
  #checkov:skip=CKV_GCP_38:Google encrypts every disk; a key of one's own is the operator's choice
  #checkov:skip=CKV_GCP_40:A NAT gateway costs more than the disk; machines get an address of their own and no inbound port

  count   = var.autodl_available ? 0 : 1
  project = var.project
  zone    = coalesce(var.zone, local.adopted.zone, "none")
  name    = coalesce(var.name, local.adopted.name, "none")

  # No machine type of this name exists: what may not be bought cannot be.
  machine_type = var.create_by_terraform ? coalesce(var.machine_type, "none") : "adopted"
  tags         = [var.network_tag]
  labels       = var.labels

  metadata = merge(
    {
      block-project-ssh-keys = "TRUE"
      enable-oslogin         = "TRUE"
      install-nvidia-driver  = "True"
    },
    var.user_data == null ? {} : { startup-script = var.user_data },
  )

  boot_disk {
    auto_delete = true

    initialize_params {
      image  = var.image
      size   = var.disk_gb
      type   = local.disk_type
      labels = var.labels
    }
  }

  network_interface {
    subnetwork = var.subnetwork

    access_config {}
  }

  service_account {
    email  = var.service_account
    scopes = ["cloud-platform"]
  }

  dynamic "guest_accelerator" {
    for_each = var.accelerator[*]

    content {
      type  = guest_accelerator.value.type
      count = guest_accelerator.value.count
    }
  }

  # A machine with a GPU cannot be moved while it runs. Its own end deletes it, so that nothing outlives its job.
  scheduling {
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    preemptible                 = var.spot
    automatic_restart           = false
    on_host_maintenance         = "TERMINATE"
    instance_termination_action = "DELETE"

    max_run_duration {
      seconds = var.max_run_s
    }
  }

  # Secure boot refuses a driver that Google's images build for themselves.
  shielded_instance_config {
    enable_secure_boot          = var.secure_boot
    enable_vtpm                 = true
    enable_integrity_monitoring = true
  }

  lifecycle {
    # A claimed machine differs from this block in many ways (market, image of its day, start script of its epoch): none
    # of them is a reason to replace a machine that trains.
    ignore_changes = all

    precondition {
      condition     = var.create_by_terraform || var.adopted_instance_id != null
      error_message = "Terraform must not start this machine: set create_by_terraform = true, or let failover claim one."
    }

    precondition {
      condition     = !var.create_by_terraform || (var.machine_type != null && var.zone != null && var.name != null)
      error_message = "To start a machine Terraform needs its name, zone and machine_type."
    }

    precondition {
      condition = !var.create_by_terraform || (
        startswith(coalesce(var.machine_type, "none"), "n1-") == (var.accelerator != null)
      )
      error_message = "An n1 machine needs an accelerator; the GPUs of every other type come with it."
    }

    precondition {
      condition     = !var.create_by_terraform || length(var.zones) == 0 || contains(var.zones, coalesce(var.zone, "none"))
      error_message = "The machine's zone is none of the wanted ones."
    }
  }
}
