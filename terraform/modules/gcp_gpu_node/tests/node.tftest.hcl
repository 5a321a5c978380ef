mock_provider "google" {}

variables {
  project         = "my-project"
  subnetwork      = "projects/my-project/regions/us-central1/subnetworks/default"
  network_tag     = "failover-digits-1a2b3c4d-0a1b2c"
  service_account = "fo-1a2b3c4d@my-project.iam.gserviceaccount.com"
  image           = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-nvidia-570"
}

run "no_machine_while_autodl_has_a_card" {
  command = plan

  variables {
    autodl_available = true
  }

  assert {
    condition     = length(google_compute_instance.gpu) == 0 && output.instance_id == null
    error_message = "There must be no machine."
  }
}

run "nobody_buys_by_accident" {
  command = plan

  variables {
    autodl_available = false
  }

  expect_failures = [google_compute_instance.gpu]
}

run "an_adopted_machine_is_looked_up_and_never_asked_for" {
  command = plan

  variables {
    autodl_available    = false
    adopted_instance_id = "projects/other-project/zones/us-central1-b/instances/failover-digits-1a2b3c4d-e1-0f0f0f0f"
    machine_type        = "n1-standard-8"
  }

  assert {
    condition = (
      data.google_compute_instance.adopted[0].name == "failover-digits-1a2b3c4d-e1-0f0f0f0f" &&
      data.google_compute_instance.adopted[0].zone == "us-central1-b" &&
      data.google_compute_instance.adopted[0].project == "other-project"
    )
    error_message = "The machine is looked up where its id says."
  }

  assert {
    condition     = google_compute_instance.gpu[0].machine_type == "adopted"
    error_message = "A machine type that exists would be bought."
  }
}

run "terraform_starts_it_when_told" {
  command = plan

  variables {
    autodl_available    = false
    create_by_terraform = true
    name                = "failover-digits-1a2b3c4d"
    zone                = "us-central1-a"
    machine_type        = "n1-standard-8"
    accelerator         = { type = "nvidia-tesla-t4", count = 1 }
    spot                = true
    max_run_s           = 43200
    user_data           = "#!/bin/bash"
  }

  assert {
    condition = (
      google_compute_instance.gpu[0].guest_accelerator[0].type == "nvidia-tesla-t4" &&
      google_compute_instance.gpu[0].scheduling[0].provisioning_model == "SPOT" &&
      google_compute_instance.gpu[0].scheduling[0].instance_termination_action == "DELETE" &&
      google_compute_instance.gpu[0].scheduling[0].max_run_duration[0].seconds == 43200
    )
    error_message = "A Spot machine with a T4 that ends by itself."
  }

  assert {
    condition = (
      google_compute_instance.gpu[0].boot_disk[0].auto_delete &&
      google_compute_instance.gpu[0].shielded_instance_config[0].enable_vtpm &&
      google_compute_instance.gpu[0].metadata["block-project-ssh-keys"] == "TRUE" &&
      google_compute_instance.gpu[0].metadata["enable-oslogin"] == "TRUE" &&
      google_compute_instance.gpu[0].tags == toset(["failover-digits-1a2b3c4d-0a1b2c"])
    )
    error_message = "The disk goes with the machine, and nobody gets in by a key of the project."
  }
}

run "gpus_that_come_with_the_machine" {
  command = plan

  variables {
    autodl_available    = false
    create_by_terraform = true
    name                = "failover-digits-1a2b3c4d"
    zone                = "us-central1-a"
    machine_type        = "g4-standard-48"
  }

  assert {
    condition = (
      length(google_compute_instance.gpu[0].guest_accelerator) == 0 &&
      google_compute_instance.gpu[0].boot_disk[0].initialize_params[0].type == "hyperdisk-balanced" &&
      google_compute_instance.gpu[0].scheduling[0].provisioning_model == "STANDARD"
    )
    error_message = "No accelerator is asked for."
  }
}

run "an_n1_without_gpus" {
  command = plan

  variables {
    autodl_available    = false
    create_by_terraform = true
    name                = "failover-digits-1a2b3c4d"
    zone                = "us-central1-a"
    machine_type        = "n1-standard-8"
  }

  expect_failures = [google_compute_instance.gpu]
}

run "a_zone_that_is_not_wanted" {
  command = plan

  variables {
    autodl_available    = false
    create_by_terraform = true
    name                = "failover-digits-1a2b3c4d"
    zone                = "us-central1-f"
    zones               = ["us-central1-a"]
    machine_type        = "g2-standard-4"
  }

  expect_failures = [google_compute_instance.gpu]
}

run "not_an_instance_id" {
  command = plan

  variables {
    autodl_available    = false
    adopted_instance_id = "us-central1-a/web-1"
  }

  expect_failures = [var.adopted_instance_id]
}
